/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Path MTU discovery inside a tunnel (RFC 2003, 5.1; RFC 2473, 7.1): a hop on the way to a
 * backend finds the outer packet too long, and tells its source, which is us. What it says is
 * kept for a while, by the backend's address, and the next packet that is too long for that
 * is answered here. So it does not matter how much of the inner packet the error quotes, nor
 * of which families the two are.
 */
#ifndef XR_TUNNEL_MTU_H
#define XR_TUNNEL_MTU_H

#include "icmp.h"
#include "tunnel.h"

#define TUNNEL_MTU_NS 600000000000ULL /* RFC 1191, 6.3: a way may have become wider again */

/* Nobody may have us make packets shorter than every link takes (RFC 791, RFC 8200). */
#define TUNNEL_MTU_MIN (XR_FAMILY == 6 ? 1280U : 576U)

/* What a hop on the way to the backend said, if it is less than `mtu`; else `mtu`. */
static __always_inline __u32 tunnel_mtu(const struct backend *backend, __u32 mtu)
{
	struct prefix_key key = {.addr = backend->addr};
	struct path_mtu *known = path_mtus_lookup(&key);

	if (!known || known->mtu >= mtu ||
	    older_than(known->seen_ns, TUNNEL_MTU_NS, clock_coarse()))
		return mtu;
	return known->mtu;
}

/* Where the ports of the inner packet are, and its protocol; 0: they are not there. */
static __always_inline __be16 *inner_ports(void *inner, void *data_end, __u8 kind, __u8 *protocol)
{
	__be16 *ports = 0;

	if (kind == 4) {
		struct iphdr *ip = inner;

		if ((void *)(ip + 1) > data_end || ip->ihl < 5)
			return 0;
		*protocol = ip->protocol;
		ports = inner + ip->ihl * 4;
	} else if (kind == 41) {
		struct outer_ipv6 *ip = inner;

		if ((void *)(ip + 1) > data_end)
			return 0;
		*protocol = ip->next_header;
		ports = (void *)(ip + 1);
	}
	return ports && (void *)(ports + 2) <= data_end ? ports : 0;
}

/*
 * Do packets to the backend go in a tunnel, by that interface? What comes from elsewhere is
 * nothing that a hop of theirs says.
 */
static __always_inline int leads_by_tunnel(struct endpoint_key *key, __u32 ifindex)
{
	struct backend_ref *ref = backend_index_lookup(key);
	struct backend *backend = ref ? backends_lookup(ref->backend) : 0;

	return backend && (backend->flags & XR_BACKEND_TUNNEL) && backend->ifindex == ifindex;
}

/*
 * Takes an error about a packet in a tunnel. 0: it is none. An ipip backend has the port of its
 * service, so the inner packet's destination port and the outer address name it.
 */
static __always_inline int tunnel_error(struct xdp_md *ctx, const struct packet *p)
{
	void *data_end = (void *)(long)ctx->data_end;
	struct icmp_header *icmp = p->l4;
	ip_header_t *outer = (void *)(icmp + 1);
	struct path_mtu value = {.seen_ns = clock_coarse()};
	struct endpoint_key endpoint = {};
	struct prefix_key key;
	__be16 *ports;

	if ((void *)(outer + 1) > data_end || !is_too_big(icmp) || !is_plain_ip(outer) ||
	    !addr_equal(outer->saddr, p->ip->daddr))
		return 0;
	ports = inner_ports(outer + 1, data_end, outer->protocol, &endpoint.proto);
	if (!ports)
		return 0;
	endpoint.addr = shared_addr(outer->daddr);
	endpoint.port = ports[1];
	if (!leads_by_tunnel(&endpoint, ctx->ingress_ifindex)) {
		endpoint.port = 0; /* of a service of many ports */
		if (!leads_by_tunnel(&endpoint, ctx->ingress_ifindex))
			return 0;
	}
	value.mtu = xr_ntohl(icmp->rest) & 0xffff;
	if (value.mtu < TUNNEL_MTU_MIN)
		value.mtu = TUNNEL_MTU_MIN;
	key.addr = endpoint.addr;
	path_mtus_put(&key, &value);
	return 1;
}

#endif
