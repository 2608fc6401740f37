// Package peers asks the other nodes of the cluster whether they reach the API server, and answers them. evictd-kube
// runs it; evictd gets the count (selffence.Count), and feeds the watchdog because of it.
//
// # Why
//
// A node that cannot reach the API server is reset by its watchdog. If the API server itself is away, that would reset
// every node that fences itself. A node therefore feeds its watchdog also while more than half of all nodes cannot
// reach the API server. In a partition the nodes of a minority that is cut off cannot get that majority.
//
// # The list
//
// All nodes are those of the API server's last list: their names and internal addresses ([List]). It is read every 10
// minutes and saved with its age, of which the clock is the time since the boot. It is not used from an age of
// selffence.MaxListAge on: an outage that is longer resets the nodes. A node without an address, or without evictd,
// is in the list and never says anything, so that it counts against a majority.
//
// # Questions and answers
//
// A node asks while its advert has not been accepted for selffence.AskInterval: one datagram to each other node, each
// interval. Each question has its own random nonce. The answer has the nonce, and says whether the node cannot reach
// the API server: whether it has an armed advert, and has had no answer to a request about it for 60 s longer than
// the period of the adverts ([selffence.Reach.Cannot]). An answer is as long as its question. Both have an
// HMAC-SHA256 of everything else, with a key that all nodes share.
//
// An answer counts once, from when its question was sent, for selffence.AnswerValid. A second answer, one to an older
// question, and one with another name than that of the node that was asked do not count.
//
// # What a reader of adverts must do
//
// A controller takes a machine for reset when its advert is unchanged for the bound. If the advert has Peers, it must
// besides have seen, in each of its lists within the bound, that more than half of all nodes reached the API server:
// the kubelet's Lease and, of a node whose advert has Peers, the advert too were renewed within
// selffence.Advert.Fresh, and the node is older than selffence.MinNodeAge, also by the clocks of those nodes: if the
// reader's clock is ahead, a young node must not count. The Lease alone is not enough: the kubelet
// and evictd-kube may have different ways to the API server. They must also be more than half of the list of the node
// itself, whose length is in its advert (PeerNodes): if Nodes of the list were deleted, whose machines run on, half of
// the Nodes that are left is less. The node uses no majority of a larger list than that of an advert which the API
// server may have. Lists that are more than 15 s apart begin the bound again, and so does a list in which renewTimes of
// the Leases have moved on by 15 s more than the reader's clock: that clock was stopped, and what happened meanwhile is
// not known. The bound is longer by what the longest period of the adverts of those nodes is longer than that of the
// node: after a late sight of their last change they count for that long.
//
// The two majorities exclude each other. Nodes that are old enough are in each list in use, so that two majorities of
// one list have a node in common. That node has said, to a question of the time t, that it had no answer since t − period − 60
// s. Its advert may have changed once after that, by a write whose answer was lost; the time counts from the sending
// of it. The reader counted the node as one with a renewed advert for at most the period + 15 s, as seen in lists of
// 10 s. In the 20 s before t, the oldest answers of the majority included, there was a list in which the reader did
// not count it. The time that is left, 15 s, is for requests in flight and for watches that are late.
//
// # Who can do what
//
//   - A node that lies has one vote. In a partition that is tied but for it, it makes a majority of those who are cut
//     off,
//     which are then fed while a controller can take them for reset.
//   - A holder of the key who receives the datagrams for other nodes, or sends from their addresses, can answer for
//     them: this
//     is as much as to make a majority of a minority. Every node has the key: a compromised evictd-kube has one vote, and
//     those of the nodes whose datagrams it can intercept.
//   - Without the key nothing can be said. An attacker who can drop datagrams can keep a node from being fed, which
//     resets it.
//   - Datagrams are bounded in number and length, and none is answered whose HMAC does not fit.
package peers
