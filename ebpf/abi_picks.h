/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What XDP picks a backend by, without asking anybody. Included by abi.h. */
#ifndef XR_ABI_PICKS_H
#define XR_ABI_PICKS_H

#define XR_PICK_SLOTS 256

/* pick_tables[2 * service id + half]: backend ids, as many slots each as its share. */
struct pick_table {
	__u32 slots[XR_PICK_SLOTS]; /* XR_NO_BACKEND: nobody's */
};
XR_ASSERT_SIZE(pick_table, 1024);

/* picks[service id]: which half is read, and how old it is. Written behind the half. */
struct picks {
	__u64 made_ns; /* when what it was made of was measured; 0: there is none */
	__u32 active;  /* 0 or 1 */
	__u32 pad;
};
XR_ASSERT_SIZE(picks, 16);

/*
 * backend_load[backend id]: what the flows themselves show of a backend. XDP alone writes it; what
 * the daemon ages out is in backend_aged. Open are opened - closed - aged: flows in flow_table of
 * which nobody has said goodbye.
 */
struct backend_load {
	__u64 ewma_ns;    /* first packet out -> the backend's answer in; 0: no sample yet */
	__u64 last_ns;    /* newest sample; 0: none */
	__u64 waiting_ns; /* inline: first packet that nobody has answered yet; 0: none */
	__u64 tried_ns;   /* inline: when it was last chosen to be measured */
	__u64 opened;
	__u64 closed;
};
XR_ASSERT_SIZE(backend_load, 48);

/* backend_signs[backend id]: how its flows fare, see lib/signs.h. XDP alone writes it. */
struct backend_signs {
	__u64 answered;    /* first packets that got an answer */
	__u64 served;      /* flows that got their first data */
	__u64 unanswered;  /* SYNs that came again, when the first one had not been answered */
	__u64 refused;     /* RSTs in answer to a SYN */
	__u64 cut;         /* accepted, and reset before the backend has said anything */
	__u64 unreachable; /* ICMP, on the backend's own way, about packets of flows */
	__u32 source;      /* hash of the source prefix that the last one of those four is about */
	__u32 sources;     /* how often that was another one than before */
};
XR_ASSERT_SIZE(backend_signs, 56);

#endif
