/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Probes authenticate themselves: the low 24 bits of a probe's sequence number are a
 * keyed hash of its tuple, the high 8 a nonce added on top. So XDP knows an answer
 * without keeping state. xdp_router/core/probe_sequence.py is the other half.
 */
#ifndef XR_PROBE_H
#define XR_PROBE_H

#include "events.h"

#define PROBE_HASH_MASK 0x00ffffffU

static __always_inline __u32 rotl32(__u32 x, int by)
{
	return x << by | x >> (32 - by);
}

struct halfsip {
	__u32 v0, v1, v2, v3;
};

static __always_inline void halfsip_round(struct halfsip *s)
{
	s->v0 += s->v1;
	s->v1 = rotl32(s->v1, 5);
	s->v1 ^= s->v0;
	s->v0 = rotl32(s->v0, 16);
	s->v2 += s->v3;
	s->v3 = rotl32(s->v3, 8);
	s->v3 ^= s->v2;
	s->v0 += s->v3;
	s->v3 = rotl32(s->v3, 7);
	s->v3 ^= s->v0;
	s->v2 += s->v1;
	s->v1 = rotl32(s->v1, 13);
	s->v1 ^= s->v2;
	s->v2 = rotl32(s->v2, 16);
}

static __always_inline void halfsip_word(struct halfsip *s, __u32 word)
{
	s->v3 ^= word;
	halfsip_round(s);
	halfsip_round(s);
	s->v0 ^= word;
}

/* The words of an address, as they lie. Gives how many bytes that were. */
static __always_inline __u32 halfsip_addr(struct halfsip *s, addr_t addr)
{
#if XR_FAMILY == 6
	halfsip_word(s, addr.word[0]);
	halfsip_word(s, addr.word[1]);
	halfsip_word(s, addr.word[2]);
	halfsip_word(s, addr.word[3]);
#else
	halfsip_word(s, addr);
#endif
	return sizeof(addr);
}

/*
 * HalfSipHash-2-4 with 32 bits of output (Aumasson, Bernstein: SipHash) over backend address,
 * backend port, our port, our address, in network byte order: 12 bytes, or 36 with IPv6.
 */
static __always_inline __u32 probe_hash(const __u32 *key, addr_t backend_addr, __be16 backend_port,
					__be16 our_port, addr_t our_addr)
{
	struct halfsip s = {
		.v0 = key[0],
		.v1 = key[1],
		.v2 = 0x6c796765U ^ key[0],
		.v3 = 0x74656462U ^ key[1],
	};
	__u32 length = sizeof(__u32);
	int i;

	/* words are read little-endian from the bytes: on this target, as they lie */
	length += halfsip_addr(&s, backend_addr);
	halfsip_word(&s, (__u32)backend_port | (__u32)our_port << 16);
	length += halfsip_addr(&s, our_addr);
	halfsip_word(&s, length << 24); /* no tail bytes */
	s.v2 ^= 0xff;
#pragma unroll
	for (i = 0; i < 4; i++)
		halfsip_round(&s);
	return s.v1 ^ s.v3;
}

static __always_inline int is_probe_port(const struct control *control, __be16 port)
{
	__u16 number = xr_ntohs(port);

	return number >= control->probe_port_min && number <= control->probe_port_max;
}

/* `seq` is the sequence number that an answer acknowledges. */
static __always_inline int is_probe_seq(const struct control *control, addr_t backend_addr,
					__be16 backend_port, __be16 our_port, addr_t our_addr,
					__u32 seq)
{
	__u32 hash = probe_hash(control->probe_key, backend_addr, backend_port, our_port, our_addr);

	return ((seq - hash) & PROBE_HASH_MASK) == 0;
}

/* Tells the daemon what came back for a probe. */
static __always_inline void probe_reply_submit(struct xdp_md *ctx, const struct packet *p,
					       __u8 answer, __u32 seq)
{
	struct event *event = events_reserve();

	if (!event) {
		count(XR_COUNT_event_lost);
		return;
	}
	event_fill(event, ctx, p, XR_EVENT_PROBE_REPLY, clock_precise());
	event->backend = XR_NO_BACKEND;
	event->detail = answer;
	event->seq = seq;
	events_submit(event);
}

#endif
