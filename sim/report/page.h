#pragma once

#include <string_view>

namespace refit {

// The parts of a report, embedded when the program is built: page.html with the marks /*style*/,
// /*library*/, /*script*/ and /*data*/, and what goes there. The library is d3 (BSD licence, as its
// first line says), from the distribution's package.

std::string_view page_html();
std::string_view page_css();
std::string_view page_js();
std::string_view page_library();

}  // namespace refit
