/* Whether an agent has the token, and how it learns that the server has it: KNOCK, CHALLENGE, PROOF
 * (docs/protocol.md "Proof of the token"). Nothing of this happens where nobody has one. */
#include "rendezvous/server/internal.h"

struct proving {
    char server_nonce[MU_NONCE_TEXT];
    char agent_nonce[MU_NONCE_TEXT];
};

const char *prove_knock(struct agent *a, const struct ctl_msg *m)
{
    const struct srv *s = a->conn->srv;
    struct ctl_msg answer;
    struct ctl_challenge *c = &answer.u.challenge;
    if (!srv_has_token(s))
        return "this server has no token, so it cannot show it: start rdzv-server with "
               "--token-file, or this agent without";
    if (a->said_hello || a->proven || a->proving != NULL)
        return "knock must be the first message";
    if (!mu_is_nonce(m->u.knock.nonce))
        return "knock.nonce is not 64 hexadecimal digits";
    struct proving *p = mu_zalloc(mu_mem_default(), sizeof *p);
    if (p == NULL)
        return "no memory for its knock";
    a->proving = p;
    (void)mu_strcopy(p->agent_nonce, sizeof p->agent_nonce, m->u.knock.nonce); /* It fits. */
    ctl_init(&answer, CTL_CHALLENGE);
    if (mu_random_digits(MU_NONCE_BYTES, p->server_nonce, NULL) < 0 ||
        mu_strcopy(c->nonce, sizeof c->nonce, p->server_nonce) < 0 ||
        mu_proof(&s->prover, MU_PROOF_OF_SERVER, p->server_nonce, p->agent_nonce, c->proof, NULL) <
            0)
        return "this server cannot compute a proof now: try again";
    agent_send(a, &answer);
    return NULL;
}

const char *prove_proof(struct agent *a, const struct ctl_msg *m)
{
    const struct srv *s = a->conn->srv;
    struct proving *p = a->proving;
    if (p == NULL)
        return "a proof that nobody asked for";
    a->proven = mu_proof_is(&s->prover, MU_PROOF_OF_AGENT, p->server_nonce, p->agent_nonce,
                            m->u.proof.proof);
    prove_free(a);
    return a->proven ? NULL
                     : "its proof is wrong: it has another token than this server, whose file must "
                       "be copied to it";
}

void prove_free(struct agent *a)
{
    mu_mem_free(mu_mem_default(), a->proving);
    a->proving = NULL;
}
