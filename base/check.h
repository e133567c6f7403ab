/* MU_ASSERT: for our own mistakes only, in release builds too. What a peer or a user can cause is
 * answered, never asserted. */
#ifndef MUSTER_BASE_CHECK_H
#define MUSTER_BASE_CHECK_H

/* Print file, line and the fact that did not hold, then abort. Never returns. */
_Noreturn void mu_assert_failed(const char *file, int line, const char *fact);

#define MU_ASSERT(fact)                                                                            \
    do {                                                                                           \
        if (!(fact))                                                                               \
            mu_assert_failed(__FILE__, __LINE__, #fact);                                           \
    } while (0)

#define MU_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#if defined(__GNUC__)
#define MU_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define MU_CLEANUP(fn) __attribute__((cleanup(fn)))
#endif

#endif
