# node-agent's command line.
mu_unit(agent.options SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/agent_options.c LINK agent_options)
mu_unit(agent.surroundings SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/agent_surroundings.c LINK agent_options)
mu_unit(agent.notice SOURCES agent_notice.c LINK agent_notice)
mu_unit(agent.chaos SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/agent_chaos.c LINK agent_chaos)
