# What `cmake --install` and the Debian package bring: programs, the C API, named models and fabrics, manual pages and completions.
include(GNUInstallDirs)

install(TARGETS refit refit-exec RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS refit_exec_api LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES exec/refit_exec.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
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
