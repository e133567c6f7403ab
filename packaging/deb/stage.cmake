# Run by cpack between `install` and packing, over the folder of each package: compressed pages, a copyright file, a changelog, and the
# environment files of the units in /etc.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(pair ${CPACK_MUSTER_PACKAGES})
    string(REPLACE "=" ";" pair ${pair})
    list(GET pair 0 group)
    list(GET pair 1 package)
    set(root ${CPACK_TEMPORARY_DIRECTORY}/${group})
    if(NOT IS_DIRECTORY ${root})
        message(FATAL_ERROR "The package ${package} has nothing in it: no folder ${root}")
    endif()
    set(doc ${root}/usr/share/doc/${package})
    file(MAKE_DIRECTORY ${doc})
    file(REMOVE ${doc}/LICENSE) # It is in the copyright file, by its name.
    file(COPY ${CPACK_MUSTER_SOURCE}/packaging/deb/copyright DESTINATION ${doc})
    file(WRITE ${doc}/changelog "muster (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * What changed is told in CHANGELOG.md.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
    file(GLOB_RECURSE pages ${root}/usr/share/man/*)
    execute_process(COMMAND gzip -9nf ${doc}/changelog ${pages} COMMAND_ERROR_IS_FATAL ANY)
    if(package STREQUAL "muster" AND IS_DIRECTORY ${root}/usr/lib/systemd)
        file(COPY ${CPACK_MUSTER_SOURCE}/systemd/rdzv-server.conf ${CPACK_MUSTER_SOURCE}/systemd/node-agent.conf
            DESTINATION ${root}/etc/muster FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
    endif()
    file(GLOB_RECURSE files ${doc}/*)
    file(CHMOD ${files} ${doc}/changelog.gz PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endforeach()
