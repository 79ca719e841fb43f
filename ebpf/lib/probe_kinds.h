/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Answers to probes that are no SYNs, and who sends them. All kinds have one numbering, see
 * xdp_router/core/probe_kinds.py: the low 24 bits of a probe's number are the keyed hash of
 * the probed endpoint, our port and our address.
 *
 *     echo   our port is the identifier; the payload begins with the number, whose upper
 *            half is the sequence number as well. The hash has port 0.
 *     STUN   the transaction id begins with the number
 *     other  a datagram of somebody else's protocol has no room for it: its first bytes go to
 *            the daemon, which knows what it asked from which port
 */
#ifndef XR_PROBE_KINDS_H
#define XR_PROBE_KINDS_H

#include "probe.h"

#define PROBE_PAYLOAD_SEEN 64 /* ANSWER_SEEN of core/probe_kinds.py */

struct echo {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be16 identifier;
	__be16 sequence;
	__be32 number;
	__be32 zero;
};

#define STUN_COOKIE 0x2112a442U
#define STUN_ANSWER 0x0101 /* binding success; an error has STUN_ERROR, too */
#define STUN_ERROR 0x0010

struct stun {
	__be16 type;
	__be16 length;
	__be32 cookie;
	__be32 number; /* of the transaction id's 12 bytes */
};

/* Does `addr` send the probes of what this key names? */
static __always_inline int sends_probes(struct endpoint_key *key, addr_t addr)
{
	struct backend_ref *ref = backend_index_lookup(key);
	struct backend *backend = ref ? backends_lookup(ref->backend) : 0;

	return backend && addr_equal(own_addr(&backend->probe_addr), addr);
}

/* The same for an endpoint that is there for probes alone: kind PROBE or STUN. */
static __always_inline int sends_only_probes(addr_t probed, __be16 port, __u8 proto, __u8 kind,
					     addr_t addr)
{
	struct endpoint_key key = {
		.addr = shared_addr(probed),
		.port = port,
		.proto = proto,
		.kind = kind,
	};

	return sends_probes(&key, addr);
}

/* A server's own endpoint, or one that is there for probes, but STUN. */
static __always_inline int sends_any_probes(addr_t probed, __be16 port, __u8 proto, addr_t addr)
{
	struct endpoint_key key = {
		.addr = shared_addr(probed),
		.port = port,
		.proto = proto,
		.kind = XR_ENDPOINT_ONE,
	};

	if (sends_probes(&key, addr))
		return 1;
	key.kind = XR_ENDPOINT_PROBE;
	return sends_probes(&key, addr);
}

static __always_inline int is_stun_server(addr_t probed, __be16 port, addr_t addr)
{
	return sends_only_probes(probed, port, IPPROTO_UDP, XR_ENDPOINT_STUN, addr);
}

static __always_inline int is_echo_number(const struct control *control, const struct echo *echo,
					  addr_t probed, addr_t our_addr)
{
	return echo->sequence == (__be16)echo->number && is_probe_port(control, echo->identifier) &&
	       is_probe_seq(control, probed, 0, echo->identifier, our_addr, xr_ntohl(echo->number));
}

/* As an answer from `probed` to our port would have it. */
static __always_inline void answer_key(struct packet *p, addr_t probed, __be16 port, __u8 proto,
				       addr_t our_addr, __be16 our_port)
{
	p->key.saddr = probed;
	p->key.daddr = our_addr;
	p->key.sport = port;
	p->key.dport = our_port;
	p->key.proto = proto;
	p->key.kind = XR_KIND_NONE;
	p->key.pad = 0;
}

/* May it be an echo reply to a probe? What has another length is not. */
static __always_inline int is_echo_reply(struct xdp_md *ctx, const struct packet *p)
{
	const struct echo *echo = p->l4;

	return (void *)(echo + 1) <= (void *)(long)ctx->data_end && p->l4_len == sizeof(*echo) &&
	       echo->type == ICMP_ECHO_REPLY && echo->code == 0;
}

/* An echo reply: an event if a probe asked for it, else the host's affair. */
static __always_inline int echo_reply(struct xdp_md *ctx, struct packet *p)
{
	struct control *control = control_lookup();
	const struct echo *echo = p->l4;
	__be16 identifier;
	__u32 number;

	if (!control || !is_echo_reply(ctx, p) || !is_probe_port(control, echo->identifier) ||
	    !sends_only_probes(p->ip->saddr, 0, IP_ICMP, XR_ENDPOINT_PROBE, p->ip->daddr))
		return pass(XR_COUNT_pass_other_protocol);
	if (!is_echo_number(control, echo, p->ip->saddr, p->ip->daddr))
		return pass(XR_COUNT_probe_unverified);
	identifier = echo->identifier;
	number = xr_ntohl(echo->number);
	answer_key(p, p->ip->saddr, 0, IP_ICMP, p->ip->daddr, identifier);
	probe_reply_submit(ctx, p, XR_PROBE_ECHO, number);
	return drop(XR_COUNT_probe_echo);
}

/*
 * The length is read back from the record, and bounded on the very register that is passed:
 * see frame_copy().
 */
static __always_inline long payload_copy(struct xdp_md *ctx, const struct packet *p,
					 const struct event *event, void *to)
{
	__u64 at = (void *)(p->udp + 1) - (void *)(long)ctx->data;
	__u64 last = *(const volatile __u16 *)&event->frame_len - 1ULL;

	asm volatile("" : "+r"(at), "+r"(last)); /* at: subtracted in 64 bits, see parse_packet() */
	return last < PROBE_PAYLOAD_SEEN ? bpf_xdp_load_bytes(ctx, at, to, last + 1) : -1;
}

/* Hands on the beginning of a datagram. */
static __always_inline void datagram_submit(struct xdp_md *ctx, const struct packet *p)
{
	struct event_small *event;

	if (!p->payload) {
		probe_reply_submit(ctx, p, XR_PROBE_DATAGRAM, 0);
		return;
	}
	event = events_reserve_small();
	if (!event) {
		count(XR_COUNT_event_lost);
		return;
	}
	event_fill(&event->head, ctx, p, XR_EVENT_PROBE_REPLY, clock_precise());
	event->head.backend = XR_NO_BACKEND;
	event->head.detail = XR_PROBE_DATAGRAM;
	event->head.frame_len = p->payload < PROBE_PAYLOAD_SEEN ? p->payload : PROBE_PAYLOAD_SEEN;
	if (payload_copy(ctx, p, &event->head, event->frame)) {
		events_discard(event);
		count(XR_COUNT_event_lost);
		return;
	}
	events_submit(event);
}

/* The answer of a STUN server: it has our hash, or is none. */
static __always_inline int is_stun_answer(struct xdp_md *ctx, const struct packet *p,
					  const struct control *control)
{
	const struct stun *stun = (void *)(p->udp + 1);

	return p->payload >= sizeof(*stun) && (void *)(stun + 1) <= (void *)(long)ctx->data_end &&
	       (stun->type & ~xr_htons(STUN_ERROR)) == xr_htons(STUN_ANSWER) &&
	       stun->cookie == xr_htonl(STUN_COOKIE) &&
	       is_probe_seq(control, p->key.saddr, p->key.sport, p->key.dport, p->key.daddr,
			    xr_ntohl(stun->number));
}

/* Is the datagram from a probed endpoint to a probe's port? The rest of it is not looked at. */
static __always_inline int is_probe_datagram(const struct packet *p, const struct control *control)
{
	return is_probe_port(control, p->key.dport) &&
	       (is_stun_server(p->key.saddr, p->key.sport, p->key.daddr) ||
		sends_any_probes(p->key.saddr, p->key.sport, IPPROTO_UDP, p->key.daddr));
}

/*
 * An answer by UDP. What no STUN server says cannot be told from what others forge: so it may
 * fill no more than half of what the ring holds before first packets go without the daemon.
 */
static __always_inline int probe_datagram(struct xdp_md *ctx, const struct packet *p,
					  const struct control *control)
{
	if (is_stun_server(p->key.saddr, p->key.sport, p->key.daddr)) {
		if (!is_stun_answer(ctx, p, control))
			return pass(XR_COUNT_probe_unverified);
	} else if (events_waiting() > control->ring_deep / 2) {
		return drop(XR_COUNT_event_lost);
	}
	datagram_submit(ctx, p);
	return drop(XR_COUNT_probe_datagram);
}

/*
 * Is an error about a probe that is no SYN? Then `p` gets the tuple that an answer would have,
 * and `number` what it carries. A datagram is quoted by 8 bytes at least, which hold its ports
 * and no hash; an echo request that is quoted without its number is not known.
 */
static __always_inline int is_about_message(struct xdp_md *ctx, struct packet *p,
					    const struct control *control, __u32 *number)
{
	void *data_end = (void *)(long)ctx->data_end;
	const ip_header_t *inner = p->l4 + sizeof(struct icmp_header);
	const struct udphdr *udp = (void *)(inner + 1);
	const struct echo *echo = (void *)(inner + 1);
	addr_t probed, our_addr;
	__u32 quoted;

	if ((void *)(udp + 1) > data_end ||
	    p->l4_len < sizeof(struct icmp_header) + sizeof(*inner) + sizeof(*udp) ||
	    !is_plain_ip(inner))
		return 0;
	quoted = p->l4_len - sizeof(struct icmp_header) - sizeof(*inner);
	probed = inner->daddr;
	our_addr = inner->saddr;
	if (inner->protocol == IPPROTO_UDP) {
		if (!is_probe_port(control, udp->source) ||
		    !(is_stun_server(probed, udp->dest, our_addr) ||
		      sends_any_probes(probed, udp->dest, IPPROTO_UDP, our_addr)))
			return 0;
		*number = 0;
		answer_key(p, probed, udp->dest, IPPROTO_UDP, our_addr, udp->source);
		return 1;
	}
	if (inner->protocol != IP_ICMP || (void *)(echo + 1) > data_end || quoted < sizeof(*echo) ||
	    echo->type != ICMP_ECHO_REQUEST || echo->code ||
	    !sends_only_probes(probed, 0, IP_ICMP, XR_ENDPOINT_PROBE, our_addr) ||
	    !is_echo_number(control, echo, probed, our_addr))
		return 0;
	*number = xr_ntohl(echo->number);
	answer_key(p, probed, 0, IP_ICMP, our_addr, echo->identifier);
	return 1;
}

#endif
