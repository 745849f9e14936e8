# What `cmake --install` and the Debian package bring: programs, the C API, the planner's libraries, a package for find_package(refit),
# named models and fabrics, manual pages and completions.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS refit refit-exec RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# find_package(refit): refit::exec, the C API, which needs nothing else.
set_target_properties(refit_exec_api PROPERTIES EXPORT_NAME exec)
install(TARGETS refit_exec_api EXPORT refit-exec LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES exec/refit_exec.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# find_package(refit COMPONENTS planner): refit::planner, all that `refit` does, from C++; the layers are libraries of their own
# (refit::fabric, ...). Headers are included as in here: "sim/search/search.h".
add_library(refit_planner INTERFACE)
target_link_libraries(refit_planner INTERFACE refit_search)
set(layers refit_planner)
set(seen)
while(layers)
  list(POP_FRONT layers layer)
  if(layer IN_LIST seen)
    continue()
  endif()
  list(APPEND seen ${layer})
  string(REPLACE refit_ "" name ${layer})
  set_target_properties(${layer} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS ${layer} EXPORT refit-planner ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
                                                INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/refit)
  get_target_property(source ${layer} SOURCE_DIR)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${source})
  if(folder)
    file(GLOB headers CONFIGURE_DEPENDS ${source}/*.h)
    install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/refit/${folder})
  endif()
  get_target_property(below ${layer} INTERFACE_LINK_LIBRARIES)  # what it stands on
  string(REGEX MATCHALL "refit_[a-z]+" below "${below}")
  list(REMOVE_ITEM below refit_flags)
  list(APPEND layers ${below})
endwhile()

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/refit)
foreach(part exec planner)
  install(EXPORT refit-${part} FILE refit-${part}-targets.cmake NAMESPACE refit:: DESTINATION ${package})
endforeach()
set(REFIT_DATA ${CMAKE_INSTALL_DATADIR}/refit)
configure_package_config_file(cmake/refit-config.cmake.in ${CMAKE_BINARY_DIR}/refit-config.cmake INSTALL_DESTINATION ${package}
                              PATH_VARS REFIT_DATA)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/refit-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/refit-config.cmake ${CMAKE_BINARY_DIR}/refit-config-version.cmake DESTINATION ${package})
install(DIRECTORY models topologies DESTINATION ${CMAKE_INSTALL_DATADIR}/refit FILES_MATCHING PATTERN "*.yaml")
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

foreach(program refit refit-exec)
  set(page ${CMAKE_BINARY_DIR}/usage/${program}.1)
  set(completion ${CMAKE_BINARY_DIR}/usage/${program})
  add_custom_command(OUTPUT ${page} ${completion}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/usage
    COMMAND $<TARGET_FILE:${program}> --man > ${page}
    COMMAND $<TARGET_FILE:${program}> --completion > ${completion}
    DEPENDS ${program} VERBATIM)
  list(APPEND usage ${page} ${completion})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${completion} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endforeach()
add_custom_target(usage ALL DEPENDS ${usage})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "Refit developers")
set(CPACK_PACKAGE_CONTACT "Refit developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "plans and replays how weights move from trainers to inference engines")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_STRIP_FILES ON)
include(CPack)
