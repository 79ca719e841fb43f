/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a service says of a first packet before anybody is asked where it goes: whether its
 * source may have a flow, whether there is room for one more, and whether the source has a
 * backend already. Flows that are bound never come by here.
 */
#ifndef XR_ADMISSION_H
#define XR_ADMISSION_H

#include "choice.h"
#include "companions.h"
#include "usage.h"

/* What the longest prefix of the service's rules that holds the source says; none: allowed. */
static __always_inline int is_denied(const struct packet *p, const struct service *service)
{
	struct source_key key = {
		.prefix_len = 8 * (sizeof(key) - sizeof(key.prefix_len)),
		.service = service->id,
		.addr = shared_addr(p->key.saddr),
	};
	__u32 *rule;

	if (!(service->flags & XR_SERVICE_SOURCES))
		return 0;
	rule = source_rules_lookup(&key);
	return rule && *rule == XR_SOURCE_DENY;
}

static __always_inline int is_at_limit(const struct service *service)
{
	return service->flow_limit && flows_open(service->id) >= service->flow_limit;
}

/* The backend that a flow of the source has already, if it takes new ones; else XR_NO_BACKEND. */
static __always_inline __u32 affinity_backend(const struct packet *p, const struct service *service,
					      __u64 now_ns)
{
	__u64 limit_ns = service->affinity_ns;
	struct affinity_key key;
	struct backend *backend;
	struct sticky *sticky;

	if (!(service->flags & XR_SERVICE_AFFINITY))
		return XR_NO_BACKEND;
	affinity_key_of(&p->key, service->id, &key);
	sticky = affinity_lookup(&key);
	if ((!sticky || older_than(sticky->seen_ns, limit_ns, now_ns)) && is_measured(service))
		sticky = companion_of(&key, &limit_ns);
	if (!sticky || older_than(sticky->seen_ns, limit_ns, now_ns))
		return XR_NO_BACKEND;
	backend = backends_lookup(sticky->backend);
	if (!backend_usable(backend) || backend->service != service->id)
		return XR_NO_BACKEND;
	return sticky->backend;
}

/* The client has proven that it is where it says: from now on its flows go together. */
static __always_inline void affinity_note(const flow_key_t *flow, const struct service *service,
					  __u32 backend, __u64 now_ns)
{
	struct sticky value = {.seen_ns = now_ns, .backend = backend};
	struct affinity_key key;

	if (!(service->flags & XR_SERVICE_AFFINITY))
		return;
	affinity_key_of(flow, service->id, &key);
	affinity_put(&key, &value);
}

#endif
