/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * QUIC connection IDs. Packets of a handshake have a long header, which shows the ID that
 * they go to; that of the first Initials the client has chosen itself. Whoever has a flow's
 * packets with an ID has the connection, so a client that comes by another port or address
 * meanwhile is sent there.
 *
 * The place of the ID is the same in all versions (RFC 8999, 5.1; RFC 9000, 17.2; RFC 9369),
 * its length at most 20 in versions 1 and 2. A client's own choice has at least 8 bytes
 * (RFC 9000, 7.2), random ones: what is shorter may be anybody's.
 */
#ifndef XR_QUIC_H
#define XR_QUIC_H

#include "clock.h"
#include "maps.h"
#include "parse.h"

#define QUIC_LONG_HEADER 0x80
#define QUIC_VERSION_AT 1
#define QUIC_ID_LENGTH_AT 5
#define QUIC_ID_AT 6
#define QUIC_ID_MIN 8
#define QUIC_HEAD (QUIC_ID_AT + XR_CONNECTION_ID_MAX) /* an Initial has 1,200 bytes */

/* So many packets of a client may have a connection's IDs noted: its handshake. */
#define QUIC_NOTED 8

/* The connection that the datagram is of, if it shows that. */
static __always_inline int quic_key_of(struct xdp_md *ctx, const struct packet *p, __u32 service,
				       struct quic_key *key)
{
	/* Of a distance that is not known: how much is there says nothing of the datagram's head. */
	const __u8 *head = (const __u8 *)(p->udp + 1) + (unknown_zero(p->eth) & 1);
	__u32 length;
	int i;

	if (p->payload < QUIC_HEAD || (void *)(head + QUIC_HEAD) > (void *)(long)ctx->data_end)
		return 0;
	length = head[QUIC_ID_LENGTH_AT];
	if (!(head[0] & QUIC_LONG_HEADER) || length < QUIC_ID_MIN || length > XR_CONNECTION_ID_MAX)
		return 0;
	/* version 0 is the server's "none of these" */
	if (!(head[QUIC_VERSION_AT] | head[QUIC_VERSION_AT + 1] | head[QUIC_VERSION_AT + 2] |
	      head[QUIC_VERSION_AT + 3]))
		return 0;
	__builtin_memset(key, 0, sizeof(*key));
	key->service = service;
	key->length = length;
#pragma unroll
	for (i = 0; i < XR_CONNECTION_ID_MAX; i++) {
		__s32 mask = i - length; /* below 0 inside the ID */

		/* No branch, else the verifier walks what follows once for each length. */
		asm volatile("" : "+r"(mask));
		key->id[i] = head[QUIC_ID_AT + i] & (mask >> 31);
	}
	return 1;
}

static __always_inline int is_fresh(const struct sticky *sticky, const struct control *control,
				    __u64 now_ns)
{
	return !older_than(sticky->seen_ns, control->udp_idle_ns, now_ns);
}

/* The backend that has the datagram's connection; XR_NO_BACKEND: none that is known. */
static __always_inline __u32 quic_backend(struct xdp_md *ctx, const struct packet *p,
					  const struct service *service,
					  const struct control *control, __u64 now_ns)
{
	struct backend *backend;
	struct sticky *known;
	struct quic_key key;

	if (!(service->flags & XR_SERVICE_QUIC) || !quic_key_of(ctx, p, service->id, &key))
		return XR_NO_BACKEND;
	known = quic_ids_lookup(&key);
	if (!known || !is_fresh(known, control, now_ns))
		return XR_NO_BACKEND;
	backend = backends_lookup(known->backend); /* its number may be another one's by now */
	return backend && backend->service == service->id ? known->backend : XR_NO_BACKEND;
}

/* The datagram goes to `backend`: so does its connection. Nobody takes a live one away. */
static __always_inline void quic_note(struct xdp_md *ctx, const struct packet *p,
				      const struct service *service, __u32 backend,
				      const struct control *control, __u64 now_ns)
{
	struct sticky value = {.seen_ns = now_ns, .backend = backend};
	struct backend *owner = backends_lookup(backend);
	struct sticky *known;
	struct quic_key key;

	/* A flow that was decided before a reload may have a number that is another one's now. */
	if (!owner || owner->service != service->id || !quic_key_of(ctx, p, service->id, &key))
		return;
	known = quic_ids_lookup(&key);
	if (known && known->backend != backend && is_fresh(known, control, now_ns))
		return;
	quic_ids_put(&key, &value);
}

#endif
