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

#endif
