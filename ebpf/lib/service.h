/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which service a packet is of. One with just its address and port comes first; then, if there
 * are services of many ports, the narrowest range of the address that holds the port. An entry
 * without backends says that a port, or a range of them, is left out of a wider one, or that
 * the gateway takes it up.
 */
#ifndef XR_SERVICE_H
#define XR_SERVICE_H

#include "maps.h"
#include "packet.h"

static __always_inline void service_key_of_flow(const flow_key_t *flow, struct endpoint_key *key)
{
	key->addr = shared_addr(flow->daddr);
	key->port = flow->dport;
	key->proto = flow->proto;
	key->kind = XR_ENDPOINT_ONE;
}

static __always_inline void service_key_of(const struct packet *p, struct endpoint_key *key)
{
	service_key_of_flow(&p->key, key);
}

/* Is there a service of many ports? Else nobody looks for one. */
static __always_inline int has_ranges(const struct control *control)
{
	return control && (control->flags & XR_CONTROL_RANGES);
}

static __always_inline struct service *unless_left_out(struct service *service)
{
	return service && service->backend_count ? service : 0;
}

/* Is it one that the gateway of this host takes up? XDP leaves its packets to the kernel. */
static __always_inline int is_for_gateway(const struct service *service)
{
	return service && (service->flags & XR_SERVICE_GATEWAY);
}

/* The lowest port of the first range of an address that holds `port`; -1: none does. */
static __always_inline __s32 range_with(struct range_key *key, __u32 port)
{
	struct port_ranges *ranges = service_ranges_lookup(key);
	__s64 found = -1;
	int i;

	if (!ranges)
		return -1;
		/* Backwards: the first one has the last word. A mask, so that the verifier walks one way
	 * and not one for each range that may be the one. */
#pragma unroll
	for (i = XR_RANGES - 1; i >= 0; i--) {
		__s64 low = ranges->low[i];
		__s64 high = ranges->high[i];
		__s64 outside = (port - low) | (high - port);

		asm volatile("" : "+r"(outside));
		outside >>= 63;
		found = (found & outside) | (low & ~outside);
	}
	return found;
}

/* What is said of the range that `key`, of one port, lies in; 0: it lies in none. */
static __always_inline struct service *entry_in_ranges(struct endpoint_key *key)
{
	struct range_key range = {.addr = key->addr, .proto = key->proto};
	__s32 low = range_with(&range, xr_ntohs(key->port));

	if (low < 0)
		return 0;
	key->port = xr_htons(low);
	key->kind = XR_ENDPOINT_RANGE;
	return services_lookup(key);
}

static __always_inline struct service *service_in_ranges_of(const flow_key_t *flow)
{
	struct endpoint_key key;

	service_key_of_flow(flow, &key);
	return unless_left_out(entry_in_ranges(&key));
}

/* The service of many ports that the packet is of. */
static __always_inline struct service *service_in_ranges(const struct packet *p)
{
	return service_in_ranges_of(&p->key);
}

/* The service that a flow is of, by its client's tuple; or 0. */
static __always_inline struct service *service_of_flow(const flow_key_t *flow)
{
	struct endpoint_key key;
	struct service *service;

	service_key_of_flow(flow, &key);
	service = services_lookup(&key);
	if (service)
		return unless_left_out(service);
	return has_ranges(control_lookup()) ? service_in_ranges_of(flow) : 0;
}

/* The service that the packet is of, or 0. */
static __always_inline struct service *service_of(const struct packet *p)
{
	return service_of_flow(&p->key);
}

/* One that takes the ports of its service is behind all of its own; there are few of them. */
static __always_inline struct backend_ref *backend_of_source(const struct packet *p,
							     const struct control *control)
{
	struct backend_ref *ref;
	struct endpoint_key key = {
		.addr = shared_addr(p->key.saddr),
		.port = p->key.sport,
		.proto = p->key.proto,
	};

	ref = backend_index_lookup(&key);
	if (ref || !has_ranges(control))
		return ref;
	key.port = 0;
	return backend_index_lookup(&key);
}

#endif
