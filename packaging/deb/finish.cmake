# Run by cpack when the packages are made: takes out of libmuster0 the maintainer scripts that cpack adds to every package with a shared
# library. Its trigger does their work, and a package with a postrm would leave its name behind when it is removed.
foreach(package ${CPACK_PACKAGE_FILES})
    if(NOT package MATCHES "/libmuster0_")
        continue()
    endif()
    set(tree ${CPACK_TEMPORARY_DIRECTORY}/libmuster0-again)
    file(REMOVE_RECURSE ${tree})
    execute_process(COMMAND dpkg-deb -R ${package} ${tree} COMMAND_ERROR_IS_FATAL ANY)
    file(REMOVE ${tree}/DEBIAN/postinst ${tree}/DEBIAN/postrm)
    execute_process(COMMAND dpkg-deb --root-owner-group -b ${tree} ${package} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
    file(REMOVE_RECURSE ${tree})
endforeach()
