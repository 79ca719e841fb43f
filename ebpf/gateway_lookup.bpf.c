// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Services that the gateway of this host takes up. XDP leaves their packets to the kernel, and the
 * kernel's stack asks this program which socket is listening: it is the gateway's, whatever
 * address and port that one is bound to. Runs for what no connection has, of the whole network
 * namespace and both families.
 *
 *     port of such a service, gateway there ...... its socket (of several the kernel takes one)
 *     the same, no gateway ....................... refused: a RST, never somebody else's socket
 *     another port of an address that is local
 *     for the gateway's sake alone ............... refused: this host offers nothing else there
 *     anything else .............................. as if this program was not there
 */
#include <linux/bpf.h>

#define XR_GATEWAY_LOOKUP

#include "lib/service.h"
#include "lib/stats.h"

#define FAMILY_IPV4 2 /* AF_INET */

static __always_inline void key_of_lookup(struct bpf_sk_lookup *ctx, struct endpoint_key *key)
{
	__u32 ipv4 = ctx->local_ip4, last = ctx->local_ip6[3];

	/* Read before it is known which one it is: a place in ctx must not depend on that. */
	asm volatile("" : "+r"(ipv4), "+r"(last));
	key->addr.word[0] = ctx->local_ip6[0]; /* of IPv4: 0 */
	key->addr.word[1] = ctx->local_ip6[1];
	key->addr.word[2] = ctx->local_ip6[2];
	key->addr.word[3] = last;
	if (ctx->family == FAMILY_IPV4) {
		key->addr.word[2] = xr_htonl(0xffff);
		key->addr.word[3] = ipv4;
	}
	key->port = xr_htons(ctx->local_port);
	key->proto = ctx->protocol;
	key->kind = XR_ENDPOINT_ONE;
}

/* What is said of the port; as everywhere, what is said of it alone comes first. */
static __always_inline struct service *service_at(struct endpoint_key *key)
{
	struct service *service = services_lookup(key);

	if (service || !has_ranges(control_lookup()))
		return service;
	return entry_in_ranges(key);
}

/*
 * One socket of a listener is enough: of those that share its port (SO_REUSEPORT, one for each
 * worker) the kernel takes one by the connection's addresses and ports, as ever, unless flags
 * say otherwise. Who was chosen by another program is replaced: the service is ours.
 */
static __always_inline int steer(struct bpf_sk_lookup *ctx, __u32 service)
{
	struct bpf_sock *sock = gateway_sockets_lookup(service);
	long result;

	if (!sock) {
		count(XR_COUNT_gateway_absent);
		return SK_DROP;
	}
	result = bpf_sk_assign(ctx, sock, BPF_SK_LOOKUP_F_REPLACE);
	bpf_sk_release(sock);
	if (result) { /* it listens for the other family */
		count(XR_COUNT_gateway_absent);
		return SK_DROP;
	}
	count(XR_COUNT_gateway_steered);
	return SK_PASS;
}

XR_SEC_LOOKUP int gateway_lookup(struct bpf_sk_lookup *ctx)
{
	struct endpoint_key key = {};
	struct service *service;

	key_of_lookup(ctx, &key);
	if (ctx->protocol == IPPROTO_TCP) {
		service = service_at(&key);
		if (is_for_gateway(service))
			return steer(ctx, service->id);
	}
	key.port = 0;
	key.proto = 0;
	key.kind = XR_ENDPOINT_TAKEN_UP;
	if (!services_lookup(&key))
		return SK_PASS;
	count(XR_COUNT_taken_up_refused);
	return SK_DROP;
}
