# Flags and the two functions with which every target of this project is made.

add_library(refit_flags INTERFACE)
# -Wrestrict: gcc 12 sees overlaps in "text" + std::string at -O3 that are not there (gcc bug 105651).
target_compile_options(refit_flags INTERFACE -Wall -Wextra -Wconversion -Wshadow -Wno-restrict -ffp-contract=off)
if(REFIT_WERROR)
  target_compile_options(refit_flags INTERFACE -Werror)
endif()
if(REFIT_SANITIZE)
  target_compile_options(refit_flags INTERFACE -fsanitize=${REFIT_SANITIZE} -fno-omit-frame-pointer
                                               -fno-sanitize-recover=all)
  target_link_options(refit_flags INTERFACE -fsanitize=${REFIT_SANITIZE})
endif()
target_include_directories(refit_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(refit_flags INTERFACE REFIT_VERSION="${PROJECT_VERSION}")

# refit_layer(NAME SOURCES a.cc b.cc DEPS lower_layer third::party): a folder as a static library. Our flags are ours: who uses an
# installed layer (install.cmake) gets its headers and dependencies only.
function(refit_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(refit_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(refit_${name} PUBLIC $<BUILD_INTERFACE:refit_flags> ${ARG_DEPS})
  target_compile_features(refit_${name} PUBLIC cxx_std_20)
endfunction()

# refit_test(NAME SOURCES a_test.cc DEPS layers LABELS unit): a GoogleTest program, one CTest entry a case.
function(refit_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE refit_flags ${ARG_DEPS} GTest::gtest_main)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)  # what is tested is optimised, the tests build faster
  gtest_discover_tests(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600 DISCOVERY_TIMEOUT 120)
endfunction()
