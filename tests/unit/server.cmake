# rdzv-server's command line.
mu_unit(rendezvous.server.options SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/server_options.c LINK rdzv_server_options)
