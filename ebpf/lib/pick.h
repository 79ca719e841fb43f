/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A backend picked in the packet's own path: from the newest table of background measurements
 * (snapshot), or the better of two by what flows themselves have shown (inline). Both draw at
 * random by share, and never take "the best of all": what comes within one round of measuring
 * would all go to one backend. Flows of one source draw the same, if the service wants that.
 */
#ifndef XR_PICK_H
#define XR_PICK_H

#include "binding.h"
#include "load.h"

/* Picks of one first packet: another one where the reply tuple of the first is taken. */
#define PICK_TRIES 2
/* Slots that are looked at for a backend that can have the flow. */
#define PICK_DRAWS 8
#define PICK_STEP 97 /* coprime to XR_PICK_SLOTS */
/* The same for two of them, in the hash table, where each has slots by its weight. */
#define INLINE_DRAWS 6
#define INLINE_STEP 397 /* coprime to XR_HASH_SLOTS */
/* The table names who is up: who is passed over is the client itself, or has this tuple. */
#define CONTROL_DRAWS 4
#define TURN_STEP 131
/* One decision in so many may measure a backend anew whose sample is old. */
#define INLINE_TRY_MASK 15
#define INLINE_UNIT_SHIFT 7 /* 128 ns: a second times flows times weight fits into 64 bits */

static __always_inline int is_measured(const struct service *service)
{
	return service->mode == XR_MODE_SNAPSHOT || service->mode == XR_MODE_INLINE;
}

/* May the service's pick table be used still? */
static __always_inline int is_snapshot_fresh(const struct service *service, __u64 now_ns)
{
	struct picks *picks = picks_lookup(service->id);

	return picks && picks->made_ns &&
	       !older_than(picks->made_ns, service->snapshot_age_ns, now_ns);
}

/* Can the backend have this flow? Its number may be another service's by now. */
static __always_inline int is_fit(const struct packet *p, const struct service *service,
				  const struct decide_state *state, __u32 id)
{
	struct backend *backend = backends_lookup(id);

	return id != state->tried && backend_usable(backend) && backend->service == service->id &&
	       (is_fullnat(service) || !is_backend_itself(backend, p));
}

/* Where the drawing begins. */
static __always_inline __u32 first_draw(const struct packet *p, const struct service *service)
{
	return service->flags & XR_SERVICE_AFFINITY ? choice_hash(service, &p->key)
						    : bpf_get_prandom_u32();
}

static __always_inline __u32 pick_from_table(const struct packet *p, const struct service *service,
					     const struct decide_state *state)
{
	struct picks *picks = picks_lookup(service->id);
	__u32 draw = first_draw(p, service);
	struct pick_table *table;
	int turn;

	table = pick_tables_lookup(2 * service->id + (picks ? picks->active & 1 : 0));
	if (!table)
		return XR_NO_BACKEND;
	for (turn = 0; turn < PICK_DRAWS; turn++) {
		__u32 slot = draw % XR_PICK_SLOTS;
		__u32 id;

		asm volatile("" : "+r"(slot)); /* see hash_pick() */
		if (slot >= XR_PICK_SLOTS)
			break;
		id = table->slots[slot];
		if (is_fit(p, service, state, id))
			return id;
		draw += PICK_STEP;
	}
	return XR_NO_BACKEND;
}

/* What a flow would wait for an answer, in units; 0: nothing is known. */
static __always_inline __u64 expected_wait(const struct backend_load *load, __u64 now_ns)
{
	__u64 waiting_ns = load->waiting_ns;
	__u64 wait_ns = load->ewma_ns;

	/* A packet that nobody has answered yet: it takes longer than this. */
	if (waiting_ns && older_than(waiting_ns, wait_ns, now_ns))
		wait_ns = now_ns - waiting_ns;
	return (wait_ns < LOAD_MOST_NS ? wait_ns : LOAD_MOST_NS) >> INLINE_UNIT_SHIFT;
}

/* Is it time for a new sample of the backend? Then it gets one flow, whatever is known. */
static __always_inline int wants_sample(struct backend_load *load, __u64 now_ns)
{
	if (!older_than(load->last_ns, LOAD_FRESH_NS, now_ns) ||
	    !older_than(load->tried_ns, LOAD_FRESH_NS, now_ns))
		return 0;
	if (load->last_ns && (bpf_get_prandom_u32() & INLINE_TRY_MASK))
		return 0;
	load->tried_ns = now_ns;
	count(XR_COUNT_inline_tried);
	return 1;
}

/* What is known of a backend, for whoever asks why. */
static __always_inline __u64 weigh(struct compared *compared, int which, __u32 id,
				   const struct backend_load *load, __u64 now_ns)
{
	__u64 wait = expected_wait(load, now_ns);

	compared->backend[which] = id;
	compared->wait_ns[which] = wait << INLINE_UNIT_SHIFT;
	compared->open[which] = load_open(id, load);
	return wait;
}

/* The one of two that is expected to answer sooner for its weight. */
static __always_inline __u32 better_of(__u32 one, __u32 other, struct compared *compared,
				       __u64 now_ns)
{
	struct backend *backend = backends_lookup(one), *second = backends_lookup(other);
	struct backend_load *load = backend_load_lookup(one);
	struct backend_load *others = backend_load_lookup(other);
	__u64 wait, others_wait;

	if (!backend || !load || !second || !others)
		return one;
	wait = weigh(compared, 0, one, load, now_ns);
	others_wait = weigh(compared, 1, other, others, now_ns);
	if (wants_sample(load, now_ns))
		return one;
	if (wants_sample(others, now_ns))
		return other;
	/* of whom nothing is known is as good as the other one */
	wait = wait ? wait : others_wait ? others_wait : 1;
	others_wait = others_wait ? others_wait : wait;
	wait *= (compared->open[0] + 1ULL) * (second->weight ? second->weight : 1);
	others_wait *= (compared->open[1] + 1ULL) * (backend->weight ? backend->weight : 1);
	return others_wait < wait ? other : one;
}

/* Has it just come back, and is it not its turn? It gets its share by and by. */
static __always_inline int is_held_back(__u32 id, __u32 chance)
{
	struct backend *backend = backends_lookup(id);

	return backend && backend->share && (chance & 0xff) >= backend->share;
}

static __always_inline __u32 pick_of_two(const struct packet *p, const struct service *service,
					 struct decide_state *state)
{
	__u32 draw = first_draw(p, service);
	__u32 chance = bpf_get_prandom_u32(); /* one for all draws, or it would have several */
	__u32 first = XR_NO_BACKEND;
	int turn;

	state->compared.backend[0] = XR_NO_BACKEND;
	for (turn = 0; turn < INLINE_DRAWS; turn++) {
		__u32 id = hash_pick(service, draw);

		draw += INLINE_STEP;
		if (id == first || !is_fit(p, service, state, id) || is_held_back(id, chance))
			continue;
		if (first != XR_NO_BACKEND)
			return better_of(first, id, &state->compared, state->now_ns);
		first = id;
	}
	return first;
}

/*
 * Is the first packet of the control arm, which is not decided by the mode? By its tuple alone, as
 * core/strategy/control_arm.py has it: the daemon tells by the same which arm a flow was in.
 */
static __always_inline int is_control_arm(const struct packet *p, const struct service *service)
{
	__u32 mixed;

	if (!service->control_arm)
		return 0;
	/* mixed once more: the slot that a hash gives must say nothing of the arm */
	mixed = (choice_hash(service, &p->key) ^ 0x5bd1e995U) * 0x9e3779b1U;
	mixed = (mixed ^ mixed >> 15) * 0x85ebca6bU;
	return (mixed >> 16) * 100 < (__u32)service->control_arm << 16;
}

/*
 * Turns: slot after slot of the hash table, where each backend has as many as its share. Each CPU
 * goes its own way through it, from a place of its own; services take their turns from one count,
 * so shares are exact where one of them has a control arm, and else on average.
 */
static __always_inline __u32 whose_turn(void)
{
	__u64 *turns = counters_lookup(XR_COUNT_decided_control_arm);

	return (turns ? (__u32)*turns : 0) + bpf_get_smp_processor_id() * TURN_STEP;
}

static __always_inline __u32 pick_for_control_arm(const struct packet *p,
						  const struct service *service,
						  const struct decide_state *state)
{
	__u32 draw = service->control_arm_by == XR_MODE_HASH ? choice_hash(service, &p->key)
							     : whose_turn();
	int turn;

	for (turn = 0; turn < CONTROL_DRAWS; turn++) {
		__u32 id = hash_pick(service, draw);

		if (is_fit(p, service, state, id))
			return id;
		draw += INLINE_STEP;
	}
	return XR_NO_BACKEND;
}

static __always_inline __u32 pick(const struct packet *p, const struct service *service,
				  struct decide_state *state)
{
	if (state->arm)
		return pick_for_control_arm(p, service, state);
	return service->mode == XR_MODE_INLINE ? pick_of_two(p, service, state)
					       : pick_from_table(p, service, state);
}

#endif
