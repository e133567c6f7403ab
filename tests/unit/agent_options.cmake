# node-agent's command line.
mu_unit(agent.options SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/agent_options.c LINK agent_options)
