mu_unit(rendezvous.job SOURCES job_table.c LINK job)
mu_unit(agent.life SOURCES life_table.c LINK life)
