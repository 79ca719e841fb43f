/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * XDP's own choice of a backend: the degrade chain. core/degrade_chain.py is the daemon's.
 */
#ifndef XR_CHOICE_H
#define XR_CHOICE_H

#include "companions.h"

/* Attempts at a free reply tuple: the fallback, then slots of the hash table. */
#define DECIDE_ATTEMPTS 4
#define DECIDE_SLOT_STEP 397 /* coprime to XR_HASH_SLOTS */
/*
 * Slots that one attempt looks at: a table may name backends that are down until it is made anew,
 * and a heavy one has most of the slots. Attempts begin one slot further each.
 */
#define HASH_LOOKS 8
#define HASH_LOOKS_ALL (HASH_LOOKS + DECIDE_ATTEMPTS - 2)

/*
 * Decided because there are too many: new entries may push the flow's out, before its
 * handshake is over or, without a place in flow_table, later. Then its next segment is an
 * orphan, which the hash sends to the same backend.
 */
static __always_inline int is_one_of_many(__u8 reason)
{
	return is_over_budget(reason) || reason == XR_REASON_TABLE_FULL;
}

/* A connection that goes on is no new one to a backend that drains. */
static __always_inline int may_choose(const struct backend *backend, __u8 mode)
{
	if (mode == XR_MODE_STICKY)
		return backend && (backend->flags & XR_BACKEND_UP) && backend->ifindex;
	return backend_usable(backend);
}

/* Does the chain begin with the fallback? One that may lose its entries is hashed only. */
static __always_inline int has_fallback(const struct service *service,
					const struct decide_state *state)
{
	return service->fallback != XR_NO_BACKEND && state->reason != XR_REASON_ORPHAN &&
	       !state->flood && !is_one_of_many(state->reason);
}

/* Whose the slot is, or the next one of somebody who can be chosen and was not tried just now. */
static __always_inline __u32 hash_pick_usable(const struct service *service,
					      const struct decide_state *state, __u32 hash)
{
	__u32 id = XR_NO_BACKEND;
	int turn;

	for (turn = 0; turn < HASH_LOOKS; turn++) {
		id = hash_pick(service, hash);
		if (id != state->tried && backend_usable(backends_lookup(id)))
			break;
		hash += DECIDE_SLOT_STEP;
	}
	return id;
}

/*
 * The next step: what the connection has already; what the service's mode picks; the degrade chain:
 * the configured fallback, if up, then consistent hash over backends that are up. Gives the backend whose id and mode are in
 * `state` then, or 0 when it cannot be chosen: there may be another step, see may_choose_again().
 */
static __always_inline struct backend *
next_choice(const struct packet *p, const struct service *service, struct decide_state *state)
{
	__u32 attempt = state->attempt;
	struct backend *backend;

	if (state->sticky != XR_NO_BACKEND) { /* the fallback is still to come */
		state->backend = state->sticky;
		state->mode = state->sticky_mode;
		state->sticky = XR_NO_BACKEND;
	} else if (state->picks) {
		state->picks--;
		state->mode = state->arm ? service->control_arm_by : service->mode;
		state->backend = pick(p, service, state);
	} else {
		state->arm = 0; /* what comes now is the chain's */
		if (!attempt && !has_fallback(service, state))
			attempt = 1;
		state->backend = service->fallback;
		state->mode = XR_MODE_FALLBACK;
		if (attempt) {
			state->backend = hash_pick_usable(service, state,
							  choice_hash(service, &p->key) +
								  (attempt - 1) * DECIDE_SLOT_STEP);
			state->mode = XR_MODE_HASH;
		}
		state->attempt = attempt + 1;
	}
	forget_values();
	backend = backends_lookup(state->backend);
	if (!may_choose(backend, state->mode) || state->backend == state->tried)
		return 0;
	state->tried = state->backend;
	if (is_fullnat(service) || !is_backend_itself(backend, p))
		return backend;
	count(XR_COUNT_client_is_backend);
	return 0;
}

/* What counts a choice that was made. */
static __always_inline __u32 counter_of_choice(const struct decide_state *state)
{
	if (state->mode == XR_MODE_STICKY)
		return state->reason == XR_REASON_AFFINITY ? XR_COUNT_affinity_used
							   : XR_COUNT_connection_id_known;
	if (state->arm)
		return XR_COUNT_decided_control_arm;
	if (state->mode == XR_MODE_SNAPSHOT)
		return XR_COUNT_decided_snapshot;
	if (state->mode == XR_MODE_INLINE)
		return XR_COUNT_decided_inline;
	return state->mode == XR_MODE_FALLBACK ? XR_COUNT_decided_fallback : XR_COUNT_decided_hash;
}

static __always_inline int is_picked(const struct decide_state *state)
{
	return state->mode == XR_MODE_SNAPSHOT || state->mode == XR_MODE_INLINE ||
	       (state->arm && state->mode != XR_MODE_STICKY);
}

/* It goes neither where it has one already nor where it was picked to: why, for what comes then. */
static __always_inline void explain_next(struct decide_state *state, __u8 reason)
{
	if (state->mode == XR_MODE_STICKY || is_picked(state))
		state->reason = reason;
}

/* Nobody could be picked: the chain comes next. A tuple that was taken before says more. */
static __always_inline void pick_failed(struct decide_state *state)
{
	count(XR_COUNT_pick_unusable);
	state->picks = 0;
	if (state->reason == XR_REASON_SNAPSHOT || state->reason == XR_REASON_INLINE ||
	    state->reason == XR_REASON_CONTROL_ARM)
		state->reason = XR_REASON_NO_CANDIDATE;
}

/* No port was free: the same choice once more, or the next one. Nobody's is taken over. */
static __always_inline void look_for_port_again(struct decide_state *state)
{
	state->nat_runs++;
	if (state->nat_runs < NAT_RUNS) {
		if (state->mode == XR_MODE_STICKY || is_picked(state)) {
			state->sticky = state->backend;
			state->sticky_mode = state->mode;
		} else {
			state->attempt--;
		}
		state->tried = XR_NO_BACKEND;
		return;
	}
	state->nat_runs = 0;
	explain_next(state, XR_REASON_TUPLE_TAKEN);
	count(XR_COUNT_nat_ports_exhausted);
}

/*
 * Makes one choice and binds the flow to it. BIND_NOT_THIS, BIND_TUPLE_TAKEN: there may be another
 * one; BIND_FAILED: there is none, or no memory.
 */
static __always_inline int decide(struct xdp_md *ctx, const struct packet *p,
				  const struct service *service, struct scratch *scratch)
{
	struct decide_state *state = &scratch->decide;
	struct backend *backend;
	int result;

	if (state->attempt >= DECIDE_ATTEMPTS)
		return BIND_FAILED;
	backend = next_choice(p, service, state);
	if (!backend) {
		if (is_picked(state))
			pick_failed(state);
		else
			explain_next(state, XR_REASON_STICKY_LOST);
		return BIND_NOT_THIS;
	}
	result = bind_flow(ctx, p, service, backend, scratch);
	forget_values();
	if (result == BIND_TAKE_OVER) { /* the same choice again */
		state->freed = 1;
		state->attempt--;
		state->tried = XR_NO_BACKEND;
		return result;
	}
	state->freed = 0;
	if (result == BIND_TUPLE_TAKEN && is_fullnat(service)) {
		look_for_port_again(state);
	} else if (result == BIND_TUPLE_TAKEN) {
		state->taken = 1;
		explain_next(state, XR_REASON_TUPLE_TAKEN);
		if (!state->take_over)
			count(XR_COUNT_pending_reply_taken);
	} else if (result == BIND_DONE) {
		count(counter_of_choice(state));
		/* of one-sided flows nobody sees the answer */
		if (service->mode == XR_MODE_INLINE && !(backend->flags & XR_BACKEND_ONE_SIDED))
			load_asked(state->backend, state->now_ns);
		companion_note(p, service, state);
	} else if (result == BIND_FAILED) {
		state->attempt = DECIDE_ATTEMPTS;
		state->taken = 0;
		count(XR_COUNT_pending_insert_failed);
	}
	return result;
}

/*
 * Is there another choice for stage_decide? Each is a run of its own: a loop of them would
 * be several times as much to verify. When all are behind and some were taken: once more, and
 * now from flows that are over. A backend that has just had a connection on this tuple is
 * second best: it may be in TIME_WAIT there.
 */
static __always_inline int may_choose_again(struct decide_state *state, int result)
{
	if (result == BIND_TUPLE_TAKEN || result == BIND_NOT_THIS)
		return 1;
	if (result != BIND_FAILED || !state->taken || state->take_over)
		return 0;
	state->take_over = 1;
	state->attempt = 0;
	state->tried = XR_NO_BACKEND;
	return 1;
}

/* A reason that is none: nobody is to have the flow, the service has as many as it may. */
#define DECIDE_REFUSAL XR_REASON_NONE

/* What stage_decide has to know; `sticky` comes first, if there is one. 0: nowhere to put it. */
static __always_inline struct decide_state *begin_choice(struct xdp_md *ctx, __u32 sticky,
							 __u8 reason, __u64 held_ns, __u64 now_ns)
{
	struct scratch *scratch = scratch_lookup(ctx);

	if (!scratch)
		return 0;
	scratch->decide.reason = reason;
	scratch->decide.take_over = 0;
	scratch->decide.attempt = reason == DECIDE_REFUSAL ? DECIDE_ATTEMPTS : 0;
	scratch->decide.taken = 0;
	scratch->decide.freed = 0;
	scratch->decide.nat_runs = 0;
	scratch->decide.tried = XR_NO_BACKEND;
	scratch->decide.sticky = sticky;
	scratch->decide.held_ns = held_ns;
	scratch->decide.now_ns = now_ns;
	scratch->decide.sticky_mode = XR_MODE_STICKY;
	scratch->decide.picks = 0;
	scratch->decide.flood = 0;
	scratch->decide.tell = 0;
	scratch->decide.arm = 0;
	return &scratch->decide;
}

static __always_inline int go_to_decide(struct xdp_md *ctx, __u8 reason, __u64 held_ns,
					__u64 now_ns)
{
	return begin_choice(ctx, XR_NO_BACKEND, reason, held_ns, now_ns)
		       ? go_to_stage(ctx, XR_STAGE_DECIDE)
		       : XDP_DROP;
}

#endif
