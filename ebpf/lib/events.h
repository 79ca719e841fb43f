/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records for the daemon. Budgets bound them, see budget.h. */
#ifndef XR_EVENTS_H
#define XR_EVENTS_H

#include "clock.h"
#include "maps.h"
#include "parse.h"
#include "stats.h"

static __always_inline void event_fill(struct event *event, struct xdp_md *ctx,
				       const struct packet *p, __u8 type, __u64 now_ns)
{
	__builtin_memset(event, 0, sizeof(*event));
	event->time_ns = now_ns;
	shared_key(&p->key, &event->key);
	event->ifindex = ctx->ingress_ifindex;
	event->seq = p->seq;
	event->type = type;
}

static __always_inline void first_packet_fill(struct event *event, struct xdp_md *ctx,
					      const struct packet *p, __u8 type,
					      const struct service *service, __u8 wscale,
					      __u16 frame_len, __u64 now_ns)
{
	event_fill(event, ctx, p, type, now_ns);
	event->seen_ns = now_ns;
	event->service = service->id;
	event->backend = XR_NO_BACKEND;
	event->frame_len = frame_len;
	event->syn_data = p->payload;
	event->wscale = wscale;
}

/*
 * Copies as much of the frame as the record says; 0 when all of it is there. The verifier wants
 * both bounds of the length, 1 and the room, on the very register that is passed. Linux 6.1
 * rejects `if (len - 1 < room) load(..., len)`: it bounds the difference, or a copy; and if it
 * knew something of `len` before, it skips a test whose outcome is sure, with the lower half
 * of the register unbounded. It knows nothing of what is read back from the record.
 */
static __always_inline long frame_copy(struct xdp_md *ctx, const struct event *event, void *to,
				       __u64 room)
{
	__u64 last = *(const volatile __u16 *)&event->frame_len - 1ULL;

	asm volatile("" : "+r"(last));
	return last < room ? bpf_xdp_load_bytes(ctx, 0, to, last + 1) : -1;
}

/*
 * Hands the whole frame to the daemon: a first packet, or a later datagram. bpf_ringbuf_reserve wants a constant size,
 * hence two of them. Returns 0, or -1 when the ring has no room.
 */
static __always_inline int first_packet_submit(struct xdp_md *ctx, const struct packet *p,
					       __u8 type, const struct service *service,
					       __u8 wscale, __u64 now_ns)
{
	__u32 len = p->frame_len;

	if (len <= XR_FRAME_SMALL) {
		struct event_small *event = events_reserve_small();

		if (!event)
			return -1;
		first_packet_fill(&event->head, ctx, p, type, service, wscale, len, now_ns);
		if (frame_copy(ctx, &event->head, event->frame, sizeof(event->frame))) {
			events_discard(event);
			return -1;
		}
		events_submit(event);
		return 0;
	}
	if (len <= XR_FRAME_LARGE) {
		struct event_large *event = events_reserve_large();

		if (!event)
			return -1;
		first_packet_fill(&event->head, ctx, p, type, service, wscale, len, now_ns);
		if (frame_copy(ctx, &event->head, event->frame, sizeof(event->frame))) {
			events_discard(event);
			return -1;
		}
		events_submit(event);
		return 0;
	}
	return -1;
}

#endif
