// Package serving is the HTTPS server of the controller, for what the API server and schedulers ask of it. It runs in
// every replica, with or without the leadership.
//
//   - [Server] serves, from its start on and with TLS 1.2 or later. Connections and bodies are bounded, so that
//     a client which sends much, or slowly, or nothing, neither uses up the memory nor keeps the others out.
//   - [ClientAuthorities] refuses clients without a certificate of given authorities. Only schedulers need one.
//   - [Certificate] is what it serves with. It comes from files ([Files]), or from a Secret that the replicas share
//     ([Keeper]).
//   - The Keeper makes a certificate authority and a serving certificate, and renews both in time. The first replica
//     creates the Secret. Only the leader replaces what is in it, so that two replicas with different clocks do not
//     replace the certificates of each other. The leader also writes the authorities into the
//     MutatingWebhookConfiguration.
//
// A Secret that another program made is never changed. A certificate that can't be read or renewed does not end the one
// that is in use.
package serving
