/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Rewriting a packet, sending it on, and answering it with a RST or an ICMP error. */
#ifndef XR_SEND_H
#define XR_SEND_H

#include "csum.h"
#include "parse.h"
#include "stats.h"
#include "vlan.h"

/* The tuple after rewriting and what it adds to the sums. */
struct rewrite {
	addr_t saddr;
	addr_t daddr;
	__be16 sport;
	__be16 dport;
	__u16 l3_delta;
	__u16 l4_delta;
	__u8 udp; /* a constant wherever it is set: each program has the one or the other */
	__u8 later_fragment; /* has no ports; a constant as well */
};

/* 0 is none, and stays none; a sum that comes out as 0 is sent as its other form (RFC 768). */
static __always_inline void udp_csum_apply(struct udphdr *udp, __u16 delta)
{
	__u16 check = udp->check;

	if (!check)
		return;
	check = csum_apply(check, delta);
	udp->check = check ? check : 0xffff;
}

static __always_inline void rewrite_ports(struct packet *p, const struct rewrite *to)
{
	if (to->later_fragment)
		return;
	p->udp->source = to->sport; /* where TCP has them, too */
	p->udp->dest = to->dport;
	if (to->udp)
		udp_csum_apply(p->udp, to->l4_delta);
	else
		p->tcp->check = csum_apply(p->tcp->check, to->l4_delta);
}

static __always_inline void rewrite_packet(struct packet *p, const struct rewrite *to)
{
	rewrite_ports(p, to);
	ip_readdress_lower_ttl(p->ip, to->saddr, to->daddr, to->l3_delta);
}

static __always_inline void rewrite_from_pending(const flow_key_t *key,
						 const pending_flow_t *pending, struct rewrite *to)
{
	to->saddr = pending->new_saddr;
	to->daddr = pending->new_daddr;
	to->sport = pending->new_sport;
	to->dport = pending->new_dport;
	to->l3_delta = csum_delta_addrs(key, to->saddr, to->daddr);
	to->l4_delta = csum_delta_l4(key, to->l3_delta, to->sport, to->dport);
	to->udp = 0;
	to->later_fragment = 0;
}

/* Goes on in a stage; comes back only if the stage is not there. */
static __always_inline int go_to_stage(struct xdp_md *ctx, __u32 stage)
{
	stages_call(ctx, stage);
	return drop(XR_COUNT_tail_call_missed);
}

/* Has stage_icmp_error answer the packet, which is still as it came in. */
static __always_inline int answer_error(struct xdp_md *ctx, __u8 type, __u8 code, __u16 mtu)
{
	struct scratch *scratch = scratch_lookup(ctx);

	if (!scratch)
		return XDP_DROP;
	scratch->icmp_error.type = type;
	scratch->icmp_error.code = code;
	scratch->icmp_error.mtu = mtu;
	return go_to_stage(ctx, XR_STAGE_ICMP_ERROR);
}

static __always_inline int answer_ttl_exceeded(struct xdp_md *ctx)
{
	count(XR_COUNT_ttl_exceeded);
	return answer_error(ctx, ICMP_TIME_EXCEEDED, 0, 0);
}

/* Nobody can take the datagram, `counter` says why: as a closed port would say it. */
static __always_inline int answer_unreachable(struct xdp_md *ctx, __u32 counter)
{
	count(counter);
	return answer_error(ctx, ICMP_DEST_UNREACH, ICMP_PORT_UNREACH, 0);
}

/*
 * A frame that the daemon runs through the program carries the secret mark in its
 * metadata. Nobody else can forge it, not even another XDP program that redirects to us.
 */
static __always_inline struct reinject_meta *reinject_meta_of(struct xdp_md *ctx)
{
	struct reinject_meta *meta = (void *)(long)ctx->data_meta;
	void *data = (void *)(long)ctx->data;
	struct control *control;

	if ((void *)(meta + 1) > data)
		return 0;
	control = control_lookup();
	if (!control || !control->reinject_mark || meta->mark != control->reinject_mark)
		return 0;
	return meta;
}

static __always_inline int redirect(struct xdp_md *ctx, __u32 ifindex)
{
	struct reinject_meta *meta = reinject_meta_of(ctx);

	if (meta) {
		count(XR_COUNT_reinjected);
		meta->egress_ifindex = ifindex;
	}
	return bpf_redirect(ifindex, 0);
}

/* Can nothing be redirected to the interface? The daemon knows, by its driver. */
static __always_inline int takes_no_frames(__u32 ifindex)
{
	struct interface *interface = interfaces_lookup(ifindex);

	return interface && (interface->flags & XR_IF_NO_XMIT);
}

/* What the ingress has to be capable of where packets are the kernel's; 0: XDP sends them. */
static __always_inline __u32 handoff_to_backend(const struct backend *backend)
{
	return backend && (backend->flags & XR_BACKEND_KERNEL) ? XR_IF_HANDOFF_FORWARD : 0;
}

static __always_inline __u32 handoff_to_client(__u32 ifindex)
{
	return takes_no_frames(ifindex) ? XR_IF_HANDOFF_REPLY : 0;
}

/*
 * Leaves the rewritten packet to the kernel, which forwards it, if it is known to (capability,
 * XR_IF_HANDOFF_ flags of the ingress); else drops it: never rewritten and lost. The kernel
 * lowers the TTL itself. A tagged frame is another interface's to the kernel, of which nothing
 * is known.
 */
static __always_inline int hand_to_kernel(struct xdp_md *ctx, struct packet *p,
					  const struct rewrite *to, __u32 capability)
{
	struct interface *interface = interfaces_lookup(ctx->ingress_ifindex);
	struct reinject_meta *meta;

	if (p->ip->ttl <= 1)
		return answer_ttl_exceeded(ctx);
	if (!interface || (interface->flags & capability) != capability ||
	    p->l3_off != sizeof(struct ethhdr))
		return drop(XR_COUNT_no_path);
	rewrite_ports(p, to);
	ip_readdress(p->ip, to->saddr, to->daddr, to->l3_delta);
	mac_copy(p->eth->h_dest, interface->mac); /* or a virtual one, which the kernel refuses */
	meta = reinject_meta_of(ctx);
	if (meta) {
		count(XR_COUNT_reinjected);
		meta->egress_ifindex = XR_EGRESS_KERNEL;
	}
	return pass(XR_COUNT_handed_to_kernel);
}

/*
 * The same for a frame that bounce() would send: it bears an address of ours, and its MACs
 * are those of the way back.
 */
static __always_inline int bounce_by_kernel(struct xdp_md *ctx, const struct interface *interface)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end ||
	    !(interface->flags & XR_IF_HANDOFF_REPLY) || eth->h_proto != xr_htons(IP_ETHERTYPE))
		return drop(XR_COUNT_no_path);
	mac_copy(eth->h_dest, interface->mac);
	return pass(XR_COUNT_handed_to_kernel);
}

/* Sends the frame back out of the interface that it came in by. */
static __always_inline int bounce(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex;
	struct interface *interface = interfaces_lookup(ifindex);

	if (interface && !reinject_meta_of(ctx)) {
		if (interface->flags & XR_IF_NO_XMIT) /* neither does XDP_TX work on veth then */
			return bounce_by_kernel(ctx, interface);
		if (!(interface->flags & XR_IF_BOUNCE_REDIRECT))
			return XDP_TX;
	}
	return redirect(ctx, ifindex);
}

#define RST_LENGTH (sizeof(ip_header_t) + sizeof(struct tcphdr))

/*
 * Turns the segment into the RST that answers it (RFC 9293, 3.5.2) and sends it back:
 * with ACK, RST alone at seq = its ack; else RST|ACK, seq 0, ack = seq + length, where
 * the length comes from the IP header, never from a padded frame. Options and payload
 * are cut. A RST is never answered.
 */
static __always_inline int answer_rst(struct xdp_md *ctx, const struct packet *p, __u32 counter)
{
	__u32 length = p->frame_len;
	__u32 l3_off = p->l3_off;
	flow_key_t key = p->key;
	__u32 seq = 0, ack = 0;
	__u8 flags = TCP_RST;
	__u8 mac[ETH_ALEN];
	struct ethhdr *eth;
	struct tcphdr *tcp;
	ip_header_t *ip;
	void *data, *data_end;
	__u32 sum;
	int i;

	if (p->flags & TCP_RST)
		return drop(XR_COUNT_orphan_dropped);
	if (p->flags & TCP_ACK) {
		seq = p->ack;
	} else {
		flags |= TCP_ACK;
		ack = p->seq + segment_length(p);
	}
	count(counter);
	if (bpf_xdp_adjust_tail(ctx, (int)(l3_off + RST_LENGTH) - (int)length))
		return XDP_DROP;

	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	if (l3_off > L3_OFF_MAX)
		return XDP_DROP;
	eth = data;
	ip = data + l3_off;
	tcp = (void *)(ip + 1);
	if ((void *)(eth + 1) > data_end || (void *)(tcp + 1) > data_end)
		return XDP_DROP;

	mac_copy(mac, eth->h_dest);
	mac_copy(eth->h_dest, eth->h_source);
	mac_copy(eth->h_source, mac);

	own_ip_header(ip, RST_LENGTH, IPPROTO_TCP, 0, key.daddr, key.saddr);

	__builtin_memset(tcp, 0, sizeof(*tcp));
	tcp->source = key.dport;
	tcp->dest = key.sport;
	tcp->seq = xr_htonl(seq);
	tcp->ack_seq = xr_htonl(ack);
	tcp->doff = sizeof(*tcp) / 4;
	((__u8 *)tcp)[13] = flags;
	sum = pseudo_sum(key.daddr, key.saddr, IPPROTO_TCP, sizeof(*tcp));
#pragma unroll
	for (i = 0; i < (int)sizeof(*tcp) / 2; i++)
		sum += ((__u16 *)tcp)[i];
	tcp->check = ~csum_fold(sum);
	return bounce(ctx);
}

/* Has stage_send send the packet to a backend; it is rewritten, but for its MACs. */
static __always_inline int go_to_send(struct xdp_md *ctx, __u32 backend_id)
{
	struct scratch *scratch = scratch_lookup(ctx);

	if (!scratch)
		return XDP_DROP;
	scratch->send.backend = backend_id;
	return go_to_stage(ctx, XR_STAGE_SEND);
}

/* The same towards a client, whose frames have another tag than the backend's. */
static __always_inline int go_to_send_client(struct xdp_md *ctx, const __u8 *dmac, const __u8 *smac,
					     __u32 ifindex, __u16 vlan)
{
	struct scratch *scratch = scratch_lookup(ctx);

	if (!scratch)
		return XDP_DROP;
	scratch->send.ifindex = ifindex;
	mac_copy(scratch->send.dmac, dmac);
	mac_copy(scratch->send.smac, smac);
	scratch->send.vlan = vlan;
	return go_to_send(ctx, XR_NO_BACKEND);
}

/* Sends a rewritten packet to a backend over its resolved path. */
static __always_inline int send_to_backend(struct xdp_md *ctx, struct packet *p,
					   const struct rewrite *to, __u32 backend_id)
{
	struct backend *backend = backends_lookup(backend_id);

	if (!backend)
		return drop(XR_COUNT_no_path);
	if (backend->flags & (XR_BACKEND_KERNEL | XR_BACKEND_DEAD)) {
		if (backend->flags & XR_BACKEND_DEAD)
			return go_to_stage(ctx, XR_STAGE_KILLED);
		return hand_to_kernel(ctx, p, to,
				      addr_equal(to->saddr, p->key.saddr)
					      ? XR_IF_HANDOFF_FORWARD
					      : XR_IF_HANDOFF_FORWARD | XR_IF_HANDOFF_REPLY);
	}
	if (!backend->ifindex)
		return drop(XR_COUNT_no_path);
	if (p->ip->ttl <= 1)
		return answer_ttl_exceeded(ctx);
	rewrite_packet(p, to);
	if (backend->flags & XR_BACKEND_STAGE)
		return go_to_send(ctx, backend_id);
	mac_copy(p->eth->h_dest, backend->dmac);
	mac_copy(p->eth->h_source, backend->smac);
	return redirect(ctx, backend->ifindex);
}

/* Sends a rewritten packet towards the client, the way its first packet came; `vlan`: XR_VLAN_. */
static __always_inline int send_to_client(struct xdp_md *ctx, struct packet *p,
					  const struct rewrite *to, const __u8 *dmac,
					  const __u8 *smac, __u32 ifindex, __u16 vlan)
{
	if (p->ip->ttl <= 1)
		return answer_ttl_exceeded(ctx);
	rewrite_packet(p, to);
	if (vlan)
		return go_to_send_client(ctx, dmac, smac, ifindex, vlan);
	mac_copy(p->eth->h_dest, dmac);
	mac_copy(p->eth->h_source, smac);
	return bpf_redirect(ifindex, 0);
}

#endif
