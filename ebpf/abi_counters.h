/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counters, and the slow paths. Included by abi.h. */
#ifndef XR_ABI_COUNTERS_H
#define XR_ABI_COUNTERS_H

/* counters[]: why a packet was not simply forwarded, or what was done about it. */
#define XR_COUNTERS(X)                                                                                     \
	X(pass_malformed) /* lengths or headers do not fit: left to the kernel */                          \
	X(pass_other_mac) /* frame for another MAC */                                                      \
	X(pass_not_ip)                                                                                     \
	X(pass_other_protocol) /* not TCP, UDP, or an ICMP message that concerns a service */              \
	X(pass_fragment)       /* later fragment: no ports, so not known to be ours */                     \
	X(pass_not_service)                                                                                \
	X(first_packet)     /* SYN held and handed to the daemon */                                        \
	X(syn_held_again)   /* retransmit while its decision is open */                                    \
	X(syn_retransmit)   /* retransmit of a decided flow: same backend */                               \
	X(syn_on_live_flow) /* other ISN on a live flow: to the bound backend */                           \
	X(syn_reopened)     /* other ISN on a closed or idle flow: a new flow */                           \
	X(ring_full)                                                                                       \
	X(budget_global)                                                                                   \
	X(budget_service)                                                                                  \
	X(heartbeat_stale)                                                                                 \
	X(deadline_passed) /* SYN retransmit found its decision overdue */                                 \
	X(frame_too_long)                                                                                  \
	X(pending_insert_failed)                                                                           \
	X(pending_reply_taken) /* reply tuple belongs to another flow */                                   \
	X(decided_fallback)    /* by XDP */                                                                \
	X(decided_hash)        /* by XDP */                                                                \
	X(refused_no_backend)  /* by XDP */                                                                \
	X(refused_by_daemon)                                                                               \
	X(promoted)                                                                                        \
	X(promote_conflict)                                                                                \
	X(promote_table_full)                                                                              \
	X(orphan_hashed)                                                                                   \
	X(orphan_reset)                                                                                    \
	X(orphan_dropped) /* RST, or its SYN is still held: nothing to answer */                           \
	X(probe_synack)                                                                                    \
	X(probe_rst)                                                                                       \
	X(probe_unreachable)                                                                               \
	X(probe_unverified) /* looks like an answer, keyed hash does not fit */                            \
	X(reinjected)                                                                                      \
	X(fin_outside_window)                                                                              \
	X(rst_inexact)                                                                                     \
	X(client_moved)    /* replies follow the client's new next hop */                                  \
	X(closing_revoked) /* segment after FIN or RST: the flow lives on */                               \
	X(ttl_exceeded)                                                                                    \
	X(fragment_dropped) /* first fragment of service traffic */                                        \
	X(no_path)          /* backend has no resolved route or neighbour */                               \
	X(tail_call_missed)                                                                                \
	X(event_lost) /* probe reply or state change: ring full */                                         \
	X(budget_prefix)                                                                                   \
	X(ring_deep)          /* the daemon is behind: decided by XDP */                                   \
	X(table_full)         /* first packet while flow_table is full: hashed */                          \
	X(promoted_late)      /* a proven flow found room at last */                                       \
	X(flow_restarted)     /* the backend took a new connection on a live flow's ports */               \
	X(reply_tuple_freed)  /* taken over from another service's flow that is over */                    \
	X(client_is_backend)  /* candidate passed over: it is the client itself */                         \
	X(handed_to_kernel)   /* rewritten, and left to the kernel to forward */                           \
	X(icmp_time_exceeded) /* sent */                                                                   \
	X(icmp_too_big)       /* fragmentation needed, sent */                                             \
	X(icmp_over_budget)   /* not sent */                                                               \
	X(icmp_no_source)     /* not sent: the interface has no address */                                 \
	X(too_big_dropped)    /* too long for the egress, may be fragmented, not by the kernel */          \
	X(icmp_translated)    /* error about a flow, delivered to its other side */                        \
	X(pass_no_ipv6)       /* IPv6, and no service is of it */                                          \
	X(extension_headers) /* more than are walked, or one that is not known, on the way to a service */ \
	X(datagram_first)      /* first datagram held and handed to the daemon */                          \
	X(datagram_held)       /* a later one, likewise */                                                 \
	X(datagram_dropped)    /* more of them than are held, and no decision to be had */                 \
	X(datagrams_over)      /* more of them than are held: decided by XDP */                            \
	X(connection_id_known) /* a QUIC client came by another port: to the same backend */               \
	X(unreachable_sent)    /* ICMP destination unreachable: nobody can take the datagram */            \
	X(fragment_first)      /* of service traffic: noted, and forwarded */                              \
	X(fragment_followed)   /* a later one went where its first did */                                  \
	X(fragment_unknown)    /* its first was not seen: left to the kernel */                            \
	X(fragments_full)      /* a first one could not be noted */                                        \
	X(tunneled)            /* sent inside an outer header */                                           \
	X(vlan_changed)        /* tag put on, taken off, or changed */                                     \
	X(echo_answered)       /* ICMP echo request to a service address */                                \
	X(probe_echo)          /* ICMP echo reply to a probe */                                            \
	X(probe_datagram)      /* UDP answer to a probe */                                                 \
	X(affinity_used)       /* to the backend that the source address is bound to */                    \
	X(flow_limit_reached)  /* new flow refused: the service has as many as it may */                   \
	X(source_denied)       /* new flow dropped: a source rule says so */                               \
	X(nat_port_taken)      /* port of fullnat in use: another one was tried */                         \
	X(nat_ports_exhausted) /* no free port was found */                                                \
	X(one_sided_promoted) /* established by its second segment: replies do not come through here */    \
	X(one_sided_capped)    /* not yet: too many of one source prefix */                                \
	X(stateless_forwarded) /* over budget, by hash and without an entry */                             \
	X(stateless_replied)   /* its reply, translated without an entry */                                \
	X(stateless_promoted)  /* the backend took it: established */                                      \
	X(flood_entry)         /* over budget: noted in flood_flows, which lose only each other */         \
	X(nat_reply_unknown)   /* to a port of fullnat that no flow has: answered by a RST */              \
	X(tunnel_too_big)      /* a hop found it too long: what follows is answered */                     \
	X(killed)              /* established flow whose backend has died: its end was told */             \
	X(killed_reset)        /* packet of such a flow, answered by a RST */                              \
	X(killed_anew)      /* first packet of another flow on its tuple; or its next datagram */          \
	X(decided_snapshot) /* by XDP, from a fresh pick table */                                          \
	X(decided_inline)   /* by XDP, from what flows have shown */                                       \
	X(snapshot_stale)   /* the pick table is too old, or there is none */                              \
	X(pick_unusable)    /* none of the backends that were drawn can have the flow */                   \
	X(inline_tried)     /* chosen to be measured again */                                              \
	X(decided_control_arm) /* by XDP, not by the service's mode: to compare it with */                 \
	X(flow_moved)     /* its flow was in the table of before a change of size, and moved */            \
	X(flow_not_moved) /* likewise, but the new one is full: forwarded from there */                    \
	X(pass_gateway)   /* of a service that the gateway of this host takes up: to the kernel */         \
	X(gateway_steered)  /* by the kernel's stack, to a listening socket of the gateway */              \
	X(gateway_absent)   /* likewise, but the gateway has none: refused */                              \
	X(taken_up_refused) /* to another port of an address that is here for the gateway alone */

enum xr_counter {
#define XR_COUNTER_ENUM(name) XR_COUNT_##name,
	XR_COUNTERS(XR_COUNTER_ENUM)
#undef XR_COUNTER_ENUM
	XR_COUNTER_MAX,
};

/* stages[]: slow paths, each a program of its own with a stack of its own. */
enum xr_stage {
	XR_STAGE_SYN = 0,        /* SYN of a service: hold, retransmit, decide */
	XR_STAGE_SYN_BOUND = 1,  /* SYN on an established flow */
	XR_STAGE_DECIDE = 2,     /* XDP walks the degrade chain */
	XR_STAGE_SEGMENT = 3,    /* other segment of a service without an established flow */
	XR_STAGE_REPLY = 4,      /* backend to client while the flow is pending */
	XR_STAGE_PROBE = 5,      /* answer to a probe */
	XR_STAGE_ICMP = 6,       /* ICMP error that embeds a probe or a packet of a flow */
	XR_STAGE_ICMP_ERROR = 7, /* answers a packet by an ICMP error */
	XR_STAGE_BOUND = 8, /* packet of an established flow that another stage found, or long */
	XR_STAGE_UDP = 9,   /* every UDP datagram: established flows, and who has the rest */
	XR_STAGE_DATAGRAM = 10,  /* UDP, client to service without an established flow */
	XR_STAGE_UDP_REPLY = 11, /* UDP, backend to client while the flow is pending */
	XR_STAGE_FRAGMENT = 12,  /* fragments */
	XR_STAGE_SEND = 13,      /* sends what changes its length: tunnel, VLAN tag */
	XR_STAGE_ECHO = 14,      /* ICMP echo: a request to a service, a reply to a probe */
	XR_STAGE_FLOOD = 15,     /* over budget: forwarded without an entry, and the replies */
	XR_STAGE_TAKE_OVER = 16, /* frees a reply tuple whose flow is over */
	XR_STAGE_FORWARD = 17,   /* client's packet of a decided flow, to its backend */
	XR_STAGE_KILLED = 18,    /* packet of a flow whose backend has died */
	XR_STAGE_PREVIOUS = 19,  /* no established flow's, while a table of before is there */
	XR_STAGE_MAX = 20,
};

/* stages[] holds those of IPv4, then those of IPv6, then the entry of IPv6. */
#define XR_STAGES_IPV6 20
#define XR_STAGE_IPV6 40
#define XR_STAGES_ALL 41

#endif
