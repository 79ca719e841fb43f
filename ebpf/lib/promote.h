/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From pending to established. A flood cannot evict a live flow: only a client that has
 * proven that it saw the backend's SYN-ACK gets into flow_table.
 */
#ifndef XR_PROMOTE_H
#define XR_PROMOTE_H

#include "admission.h"
#include "proven.h"

/* Has this segment proven that the client saw the backend's SYN-ACK? */
static __always_inline int completes_handshake(const struct packet *p,
					       const pending_flow_t *forward,
					       const pending_flow_t *reply)
{
	if ((p->flags & (TCP_ACK | TCP_RST)) != TCP_ACK || !(reply->flags & XR_PENDING_SYNACK))
		return 0;
	if (p->ack != reply->isn + 1)
		return 0;
	return p->seq == forward->isn + 1 || p->seq == forward->isn + 1 + forward->syn_data;
}

/* What an entry of flow_table has of its pending one's flags, without a branch for each. */
static __always_inline __u8 promoted_flags(__u8 own, __u8 forward)
{
	return (own & XR_PENDING_FIN) / XR_PENDING_FIN * XR_FLOW_FIN |
	       (forward & XR_PENDING_FULLNAT) / XR_PENDING_FULLNAT * XR_FLOW_FULLNAT;
}

/*
 * Moves a flow whose handshake the client has proven (seq and ack both fit what passed
 * here) into flow_table: reply entry first, then forward, both NOEXIST. The pending
 * entries stay and age. Returns 0, or an error that leaves the flow pending. A proven flow
 * comes late: what its sides have sent meanwhile is in REPLY.
 */
static __always_inline int promote(struct xdp_md *ctx, const struct packet *p,
				   const struct service *service, pending_flow_t *forward,
				   pending_flow_t *reply, __u64 now_ns)
{
	struct backend *backend = backends_lookup(forward->backend);
	struct scratch *scratch = scratch_lookup(ctx);
	flow_entry_t *entry;
	__u32 late = -(__u32) !!is_proven(forward, reply); /* a mask, as in bind_flow() */
	int udp = p->key.proto == IPPROTO_UDP;             /* without numbers: all of them are 0 */
	flow_key_t key;
	long result;

	if (!scratch || !backend)
		return -1;
	entry = &scratch->entry;
	__builtin_memset(entry, 0, sizeof(*entry));
	reply_key_of(forward, p->key.proto, &key);
	key.kind = XR_KIND_NONE;
	entry->last_seen_ns = now_ns;
	entry->packets = reply->packets;
	entry->bytes = reply->bytes;
	asm volatile("" : "+r"(late));
	entry->seq_next = udp ? reply->seq : (reply->seq & late) | ((reply->isn + 1) & ~late);
	entry->ack = (reply->ack & late) | (p->seq & ~late);
	entry->window = reply->window;
	entry->flags = promoted_flags(reply->flags, forward->flags);
	entry->state = XR_TCP_ESTABLISHED;
	entry->wscale = effective_wscale(reply, forward);
	entry->direction = XR_DIR_REPLY;
	entry->new_saddr = reply->new_saddr;
	entry->new_daddr = reply->new_daddr;
	entry->new_sport = reply->new_sport;
	entry->new_dport = reply->new_dport;
	entry->l3_delta = csum_delta_addrs(&key, entry->new_saddr, entry->new_daddr);
	entry->l4_delta = csum_delta_l4(&key, entry->l3_delta, entry->new_sport, entry->new_dport);
	entry->backend = forward->backend;
	entry->ifindex = ctx->ingress_ifindex;
	mac_copy(entry->in_mac, backend->smac);
	mac_copy(entry->dmac, p->eth->h_source);
	mac_copy(entry->smac, p->eth->h_dest);
	entry->mode = forward->mode;
	entry->reason = forward->reason;
	entry->service = forward->service;
	entry->seen_ns = forward->seen_ns;
	entry->established_us = elapsed_us(forward->seen_ns, now_ns);
	entry->isn = reply->isn;
	entry->latency_ns = forward->latency_ns;
	entry->fppl_ns = forward->fppl_ns;
	entry->synack_us = reply->synack_us;
	entry->vlan = vlan_to_client(ctx, backend);
	if (entry->vlan)
		entry->flags |= XR_FLOW_STAGE;
	result = flow_table_insert(&key, entry);
	if (result) {
		count(result == EEXIST_RESULT ? XR_COUNT_promote_conflict
					      : XR_COUNT_promote_table_full);
		return result;
	}

	entry->packets = forward->packets;
	entry->bytes = forward->bytes;
	entry->seq_next = p->seq;
	entry->ack = p->ack;
	entry->window = (__u32)p->window << effective_wscale(forward, reply);
	entry->flags = promoted_flags(forward->flags, forward->flags);
	entry->wscale = effective_wscale(forward, reply);
	entry->direction = XR_DIR_FORWARD;
	entry->open = 1;
	entry->vlan = XR_VLAN_KEEP; /* what is the backend's stands in `backends` */
	entry->new_saddr = forward->new_saddr;
	entry->new_daddr = forward->new_daddr;
	entry->new_sport = forward->new_sport;
	entry->new_dport = forward->new_dport;
	entry->l3_delta = csum_delta_addrs(&p->key, entry->new_saddr, entry->new_daddr);
	entry->l4_delta =
		csum_delta_l4(&p->key, entry->l3_delta, entry->new_sport, entry->new_dport);
	mac_copy(entry->in_mac, p->eth->h_dest);
	entry->isn = forward->isn;
	flow_key_of_kind(p, XR_KIND_NONE, &key);
	result = flow_table_insert(&key, entry);
	if (result) {
		count(result == EEXIST_RESULT ? XR_COUNT_promote_conflict
					      : XR_COUNT_promote_table_full);
		reply_key_of(forward, p->key.proto, &key);
		key.kind = XR_KIND_NONE;
		flow_table_delete(&key);
		return result;
	}
	count(XR_COUNT_promoted);
	flow_opened(forward->service, forward->backend);
	forward->flags |= XR_PENDING_PROMOTED;
	reply->flags |= XR_PENDING_PROMOTED;
	affinity_note(&p->key, service, forward->backend, now_ns);
	if (forward->reason == XR_REASON_STATELESS)
		count(XR_COUNT_stateless_promoted);
	if (late) {
		count(XR_COUNT_promoted_late);
		forward->flags &= ~XR_PENDING_PROVEN; /* these entries age as usual now */
		reply->flags &= ~XR_PENDING_PROVEN;
	}
	flow_event_submit(ctx, p, XR_EVENT_ESTABLISHED, forward, reply->synack_us, now_ns);
	return 0;
}

#endif
