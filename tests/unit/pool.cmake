mu_unit(rendezvous.pool SOURCES pool_stories.c LINK pool)
mu_unit(rendezvous.pool.random SOURCES pool_random.c LINK pool)
