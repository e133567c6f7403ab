mu_unit(rendezvous.job SOURCES job_table.c LINK job)
mu_unit(agent.life SOURCES life_table.c LINK life)
mu_unit(rendezvous.job.stories SOURCES job_stories.c LINK job)
mu_unit(agent.life.stories SOURCES life_stories.c LINK life)
