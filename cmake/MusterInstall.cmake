# Where things are installed, and with whom: every file belongs to one component, and every component to one package.
#   programs       node-agent, rdzv-server and their module      man, completions   for them
#   docs           pages, guides, examples                       systemd            units
#   runtime        libmuster.so.0                                sdk                what a compiler and CMake want, muster(3)
#   python         the module muster                             trainer            the reference trainer
option(MUSTER_BUNDLE "Install the libraries that programs need beside them, so that they run where these are missing" OFF)

# A Python wheel (pyproject.toml) has a folder for each kind of thing, which pip unpacks over the environment's own: there bin/ and
# lib/muster/ end up side by side, as below any other prefix.
set(MUSTER_PYTHON_DIR ${CMAKE_INSTALL_LIBDIR}/muster/python CACHE STRING "Where the Python module goes, seen from the prefix")
set(MUSTER_ZSH_DIR ${CMAKE_INSTALL_DATADIR}/zsh/site-functions CACHE STRING "Where zsh's completions go, seen from the prefix")
if(SKBUILD)
    set(CMAKE_INSTALL_BINDIR ${SKBUILD_SCRIPTS_DIR})
    set(CMAKE_INSTALL_LIBDIR ${SKBUILD_DATA_DIR}/lib)
    set(CMAKE_INSTALL_DATADIR ${SKBUILD_DATA_DIR}/share)
    set(CMAKE_INSTALL_MANDIR ${SKBUILD_DATA_DIR}/share/man)
    set(MUSTER_ZSH_DIR ${SKBUILD_DATA_DIR}/share/zsh/site-functions)
    set(MUSTER_BIN_TO_MODULES ../lib/muster)
    set(MUSTER_PYTHON_DIR ${SKBUILD_PLATLIB_DIR})
    set(MUSTER_RUNTIME_DIR ${SKBUILD_PLATLIB_DIR}/muster) # Beside the module, as both may be unpacked anywhere.
    set(MUSTER_LICENSE_DIR ${SKBUILD_METADATA_DIR}/licenses)
else()
    file(RELATIVE_PATH MUSTER_BIN_TO_MODULES ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/muster)
    set(MUSTER_RUNTIME_DIR ${CMAKE_INSTALL_LIBDIR})
    set(MUSTER_LICENSE_DIR ${CMAKE_INSTALL_DOCDIR}/licenses)
endif()

# The old kind of run path (DT_RPATH) also holds for the libraries of libraries, which so need not be touched.
if(MUSTER_BUNDLE)
    set(CMAKE_INSTALL_RPATH "$ORIGIN/${MUSTER_BIN_TO_MODULES}")
    add_link_options(-Wl,--disable-new-dtags)
endif()

# Called when all targets are known.
function(mu_install_bundle)
    get_property(targets GLOBAL PROPERTY MUSTER_INSTALLED_programs)
    set(files)
    foreach(target ${targets})
        list(APPEND files $<TARGET_FILE:${target}>)
    endforeach()
    install(CODE "
set(programs \"${files}\")
set(libraries \"${CMAKE_INSTALL_LIBDIR}/muster\")
set(licenses \"${MUSTER_LICENSE_DIR}\")
include(\"${PROJECT_SOURCE_DIR}/cmake/bundle.cmake\")" COMPONENT programs)
endfunction()
