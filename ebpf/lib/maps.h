/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps, and one accessor for each access. This is the only place that knows
 * the two dialects: libbpf's BTF maps, and bcc's tables (whose rewriter sees only
 * calls in the main text, so never a macro). User space creates the maps itself and
 * hands them to either loader; sizes other than these are its choice
 * (xdp_router/adapters/map_specs.py).
 *
 * An insert gives an int, for a reason: before Linux 6.4 the verifier puts a function that
 * returns an int in the place of bpf_map_update_elem, so the upper half of the helper's long
 * is no sign, and `== -EEXIST` in 64 bits is never true.
 */
#ifndef XR_MAPS_H
#define XR_MAPS_H

#include "family.h"

/* What stage_decide is to do; written by the stage that calls it. */
struct decide_state {
	__u64 now_ns;
	__u64 held_ns;    /* since when the first packet waits */
	__u8 reason;      /* enum xr_reason */
	__u8 wscale;      /* of the SYN */
	__u8 take_over;   /* reply tuples of flows that are over may be had */
	__u8 attempt;     /* choices that are behind */
	__u8 taken;       /* one of them was good, but for its reply tuple */
	__u8 nat_runs;    /* of the last of them: ports of fullnat were looked for so often */
	__u8 mode;        /* of the choice that is made */
	__u8 freed;       /* its reply tuple was looked at by stage_take_over */
	__u8 flood;       /* its entries go into flood_flows */
	__u8 own_reply;   /* its REPLY was put there by this decision */
	__u8 picks;       /* how often a backend may still be picked by the service's mode */
	__u8 tell;        /* an event is paid for */
	__u8 sticky_mode; /* what it is if `sticky` is chosen */
	__u8 arm;         /* picks are those of the control arm */
	__u8 pad[2];
	__u32 backend; /* of the choice that is made */
	__u32 tried;   /* the last of them */
	__u32 sticky; /* comes first: the backend that the connection has already, or the same again */
	struct compared compared; /* by the newest pick of mode inline */
};

/* What stage_icmp_error is to answer; written by the stage that calls it. */
struct icmp_error_state {
	__u8 type;
	__u8 code;
	__u16 mtu; /* of the next hop, RFC 1191 */
	__u32 pad;
};

/* What stage_send is to do; written by the stage that calls it. */
struct send_state {
	__u32 backend; /* XR_NO_BACKEND: to a client, by what follows */
	__u32 ifindex;
	__u8 dmac[6];
	__u8 smac[6];
	__u16 vlan; /* XR_VLAN_ */
	__u8 pad[6];
};

/*
 * Values too large for the stack are built here. One program runs at a time on a CPU, but for
 * those of frames that are run again.
 */
struct scratch {
	struct decide_state decide;
	struct icmp_error_state icmp_error;
	struct send_state send;
	pending_flow_t pending;
	flow_entry_t entry;
	flow_key_t keys[2]; /* of stage_decide: with IPv6 they are too many for its stack */
	struct bpf_fib_lookup fib;
};

#ifdef XR_LOADER_BCC
#include "maps_bcc.h"
#include "flow_maps_bcc.h"
#else
#include "maps_libbpf.h"
#include "flow_maps_libbpf.h"
#endif

/* A flow that is still in the table of before, for who only wants to know of it; see previous.h. */
static __always_inline flow_entry_t *previous_lookup(flow_key_t *key)
{
	void *table = previous_table();

	return table ? previous_entry(table, key) : 0;
}

/*
 * A frame that the daemon runs again has a scratch of its own: before Linux 6.11 packets may come
 * in between on its CPU, and between its stages. It is the one with metadata in front.
 */
static __always_inline struct scratch *scratch_lookup(struct xdp_md *ctx)
{
	void *meta = (void *)(long)ctx->data_meta;

	return scratch_slot_lookup(meta + sizeof(struct reinject_meta) <= (void *)(long)ctx->data);
}

/* Goes on in a stage of this family; comes back only if it is not there. */
static __always_inline void stages_call(struct xdp_md *ctx, __u32 stage)
{
	any_stage_call(ctx, XR_FAMILY == 6 ? XR_STAGES_IPV6 + stage : stage);
}

#endif
