#include "sim/report/page.h"

// The assembler takes the files in as they are (.incbin): no size limit, no escaping. Their paths
// come from CMake.
#define REFIT_EMBED(name, path) \
  asm(".section .rodata\n"      \
      ".global refit_" #name    \
      "\n"                      \
      ".hidden refit_" #name    \
      "\n"                      \
      "refit_" #name            \
      ":\n"                     \
      ".incbin \"" path         \
      "\"\n"                    \
      ".global refit_" #name    \
      "_end\n"                  \
      ".hidden refit_" #name    \
      "_end\n"                  \
      "refit_" #name            \
      "_end:\n"                 \
      ".byte 0\n"               \
      ".previous\n");           \
  extern "C" const char refit_##name[], refit_##name##_end[]

REFIT_EMBED(page_html, REFIT_PAGE_HTML);
REFIT_EMBED(page_css, REFIT_PAGE_CSS);
REFIT_EMBED(page_js, REFIT_PAGE_JS);
REFIT_EMBED(page_library, REFIT_PAGE_LIBRARY);

namespace refit {

std::string_view page_html() { return {refit_page_html, refit_page_html_end}; }
std::string_view page_css() { return {refit_page_css, refit_page_css_end}; }
std::string_view page_js() { return {refit_page_js, refit_page_js_end}; }
std::string_view page_library() { return {refit_page_library, refit_page_library_end}; }

}  // namespace refit
