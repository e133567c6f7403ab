# The Debian packages, one for each group of components: `cmake --preset deb`, then the target `package`.
set(MUSTER_MAINTAINER "The muster developers <developers@muster.example>" CACHE STRING "Who stands in a package for it")
set(MUSTER_HOMEPAGE "" CACHE STRING "Where the project is found; empty: the packages name no place")

# mu_package(GROUP NAME SECTION "first line" "description" COMPONENT...)
function(mu_package group name section summary description)
    foreach(component ${ARGN})
        string(TOUPPER ${component} upper)
        set(CPACK_COMPONENT_${upper}_GROUP ${group} PARENT_SCOPE)
    endforeach()
    set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${ARGN} PARENT_SCOPE)
    set(MUSTER_PACKAGES ${MUSTER_PACKAGES} ${group}=${name} PARENT_SCOPE)
    string(TOUPPER ${group} upper)
    set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name} PARENT_SCOPE)
    set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section} PARENT_SCOPE)
    set(CPACK_DEBIAN_${upper}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
    set(CPACK_DEBIAN_${upper}_PACKAGE_SHLIBDEPS ON PARENT_SCOPE)
endfunction()

set(is_it "muster starts one program on many machines as one job: it lets them find
each other, gives every process its rank, and when one fails stops all, says
which failed first and why, and starts them again. It takes torchrun's place.
.")
set(CPACK_COMPONENTS_ALL)
mu_package(muster muster admin "launcher and rendezvous of multi-node jobs"
    "${is_it}\nnode-agent runs on each node; rdzv-server, once in a cluster, is where they\nmeet."
    programs man completions docs)
get_property(has_units GLOBAL PROPERTY MUSTER_INSTALLED_systemd)
if(has_units)
    list(APPEND CPACK_COMPONENTS_ALL systemd)
    set(CPACK_COMPONENT_SYSTEMD_GROUP muster)
    set(scripts ${PROJECT_SOURCE_DIR}/packaging/deb/muster)
    set(CPACK_DEBIAN_MUSTER_PACKAGE_CONTROL_EXTRA "${scripts}/postinst;${scripts}/prerm;${scripts}/postrm;${scripts}/conffiles")
endif()
mu_package(libmuster libmuster0 libs "what a worker of a multi-node job links"
    "${is_it}\nlibmuster tells a process its rank, and has a store, collectives, a DDP reducer\nand checkpoints. This is the library." runtime)
mu_package(devel libmuster-dev libdevel "what a worker of a multi-node job links (headers)"
    "${is_it}\nThis is what a compiler needs to build programs on libmuster." sdk)
mu_package(python python3-muster python "what a worker of a multi-node job asks and tells, from Python"
    "${is_it}\nThis is the Python module, and python -m muster.run." python)
if(TARGET trainer)
    mu_package(trainer muster-trainer admin "reference program of libmuster: trains a small network"
        "${is_it}\nThis is its reference program: data parallel training, in C." trainer)
endif()

set(exactly "(= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_MUSTER_PACKAGE_RECOMMENDS "python3")
set(CPACK_DEBIAN_MUSTER_PACKAGE_SUGGESTS "python3-muster")
set(CPACK_DEBIAN_DEVEL_PACKAGE_DEPENDS "libmuster0 ${exactly}")
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3:any (>= 3.8), libmuster0 (>= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS "muster")
set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA
    "${PROJECT_SOURCE_DIR}/packaging/deb/python/postinst;${PROJECT_SOURCE_DIR}/packaging/deb/python/prerm")
set(CPACK_DEBIAN_TRAINER_PACKAGE_DEPENDS "libmuster0 ${exactly}, python3:any") # Its plot.py.
set(CPACK_DEBIAN_TRAINER_PACKAGE_SUGGESTS "python3-matplotlib")
# CPack's own way with shared libraries runs ldconfig in maintainer scripts, where a trigger is wanted: finish.cmake.
file(WRITE ${PROJECT_BINARY_DIR}/packaging/shlibs "libmuster 0 libmuster0 (>= ${PROJECT_VERSION})\n")
file(WRITE ${PROJECT_BINARY_DIR}/packaging/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBMUSTER_PACKAGE_CONTROL_EXTRA "${PROJECT_BINARY_DIR}/packaging/shlibs;${PROJECT_BINARY_DIR}/packaging/triggers")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME muster)
set(CPACK_PACKAGE_CONTACT "${MUSTER_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # It would be every package's first line.
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_HOMEPAGE "${MUSTER_HOMEPAGE}")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)
# What the policy wants to be in each package, and does not come from an install rule.
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/deb/stage.cmake)
set(CPACK_POST_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/deb/finish.cmake)
set(CPACK_MUSTER_PACKAGES ${MUSTER_PACKAGES})
set(CPACK_MUSTER_SOURCE ${PROJECT_SOURCE_DIR})
include(CPack)
