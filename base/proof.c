/* Proofs of the token: the text that is signed, and the module that signs it. */
#include "base/proof.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/module.h"

#define MODULE "muster-crypto.so"

/* Never unloaded: a library of that kind does not like that. */
int mu_prover_init(struct mu_prover *p,
                   const struct mu_token *t,
                   const char *module,
                   struct mu_err *err)
{
    void *lib = mu_module_open(module, MODULE);
    if (lib == NULL) {
        const char *why = dlerror();
        return mu_err_set(err, -ENOENT,
                          "a token needs " MODULE
                          ", which cannot be opened (%.100s): install it, or "
                          "leave the token out",
                          why != NULL ? why : "no reason given");
    }
    const struct mu_crypto_module *m = dlsym(lib, MU_CRYPTO_SYMBOL);
    if (m == NULL || m->abi != MU_CRYPTO_ABI) {
        (void)dlclose(lib);
        return mu_err_set(err, -ENOEXEC,
                          MODULE " is of another version: install the one of this program");
    }
    *p = (struct mu_prover){.token = *t, .crypto = m};
    return 0;
}

void mu_prover_fini(struct mu_prover *p)
{
    mu_token_wipe(&p->token);
    p->crypto = NULL;
}

bool mu_is_nonce(const char *text)
{
    return strlen(text) == MU_NONCE_TEXT - 1 &&
           strspn(text, "0123456789abcdef") == MU_NONCE_TEXT - 1;
}

int mu_proof(const struct mu_prover *p,
             enum mu_proof_of who,
             const char *server_nonce,
             const char *agent_nonce,
             char *ret,
             struct mu_err *err)
{
    char text[32 + 2 * MU_NONCE_TEXT];
    unsigned char key[MU_TOKEN_BYTES];
    unsigned char mac[MU_HMAC_BYTES];
    MU_ASSERT(mu_is_nonce(server_nonce) && mu_is_nonce(agent_nonce));
    int n = snprintf(text, sizeof text, "muster/1 %s\n%s\n%s\n",
                     who == MU_PROOF_OF_SERVER ? "server" : "agent", server_nonce, agent_nonce);
    MU_ASSERT(n > 0 && (size_t)n < sizeof text);
    mu_token_bytes(&p->token, key);
    int r = p->crypto->hmac_sha256(key, sizeof key, text, (size_t)n, mac);
    explicit_bzero(key, sizeof key);
    if (r < 0)
        return mu_err_set(err, -EIO, "libcrypto refuses HMAC-SHA256, or has no memory");
    for (size_t i = 0; i < sizeof mac; i++) {
        ret[2 * i] = "0123456789abcdef"[mac[i] >> 4];
        ret[2 * i + 1] = "0123456789abcdef"[mac[i] & 15];
    }
    ret[MU_PROOF_TEXT - 1] = '\0';
    return 0;
}

bool mu_proof_is(const struct mu_prover *p,
                 enum mu_proof_of who,
                 const char *server_nonce,
                 const char *agent_nonce,
                 const char *said)
{
    char right[MU_PROOF_TEXT];
    return strlen(said) == MU_PROOF_TEXT - 1 &&
           mu_proof(p, who, server_nonce, agent_nonce, right, NULL) == 0 &&
           mu_secret_equal(right, said, MU_PROOF_TEXT - 1);
}
