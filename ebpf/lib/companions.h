/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows of one source that come before its first is established, with affinity, where XDP decides
 * by the service's mode: they go the same way, as core/companions.py has it for those that are
 * held. In a table of their own: forged sources push out each other, and no proven one.
 */
#ifndef XR_COMPANIONS_H
#define XR_COMPANIONS_H

#include "pick.h"

#define COMPANIONS_NS 10000000000ULL /* as long as a handshake may take */

static __always_inline void affinity_key_of(const flow_key_t *flow, __u32 service,
					    struct affinity_key *key)
{
	key->addr = shared_addr(flow->saddr);
	key->service = service;
}

/* What was decided of the source last, and how long that holds. */
static __always_inline struct sticky *companion_of(struct affinity_key *key, __u64 *limit_ns)
{
	if (*limit_ns > COMPANIONS_NS)
		*limit_ns = COMPANIONS_NS;
	return companions_lookup(key);
}

/* The flow is decided: those of its source that come next go with it. */
static __always_inline void companion_note(const struct packet *p, const struct service *service,
					   const struct decide_state *state)
{
	struct sticky value = {.seen_ns = state->now_ns, .backend = state->backend};
	struct affinity_key key;

	if (!(service->flags & XR_SERVICE_AFFINITY) || !is_measured(service) || state->flood ||
	    state->mode == XR_MODE_STICKY)
		return;
	affinity_key_of(&p->key, service->id, &key);
	companions_put(&key, &value);
}

#endif
