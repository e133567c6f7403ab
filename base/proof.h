/* Proofs that one has the token, without saying it: HMAC-SHA256 over who proves and both sides'
 * nonces (docs/protocol.md "Proof of the token"). */
#ifndef MUSTER_BASE_PROOF_H
#define MUSTER_BASE_PROOF_H

#include <stdbool.h>

#include "base/crypto_module.h"
#include "base/err.h"
#include "base/token.h"

#define MU_NONCE_BYTES 32
#define MU_NONCE_TEXT (2 * MU_NONCE_BYTES + 1) /* As digits, with its NUL. */
#define MU_PROOF_TEXT (2 * MU_HMAC_BYTES + 1)

/* A token and what computes with it. */
struct mu_prover {
    struct mu_token token;
    const struct mu_crypto_module *crypto;
};

enum mu_proof_of {
    MU_PROOF_OF_SERVER,
    MU_PROOF_OF_AGENT /* Another text, so that neither's proof can be sent back as the other's. */
};

/* Opens the module; `module` is its path, or NULL to find it beside the program. Returns 0 or a
 * negative errno with a sentence. The token is copied. */
int mu_prover_init(struct mu_prover *p,
                   const struct mu_token *t,
                   const char *module,
                   struct mu_err *err);
void mu_prover_fini(struct mu_prover *p);

/* Is it 64 hexadecimal digits in lower case? */
bool mu_is_nonce(const char *text);

/* ret has MU_PROOF_TEXT bytes. Returns 0 or -EIO with a sentence. */
int mu_proof(const struct mu_prover *p,
             enum mu_proof_of who,
             const char *server_nonce,
             const char *agent_nonce,
             char *ret,
             struct mu_err *err);

/* Is `said` that proof? */
bool mu_proof_is(const struct mu_prover *p,
                 enum mu_proof_of who,
                 const char *server_nonce,
                 const char *agent_nonce,
                 const char *said);

#endif
