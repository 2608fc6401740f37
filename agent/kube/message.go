package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/evictd/evictd/agent/selffence"
)

// Version is the version of the protocol. It changes when a change of the messages is merged: a peer
// ends the session at a key that it does not know, and would do so again and again. Version 2 has
// messages about the Node object and the kubelet's configuration, and more about a pod and an order.
// Version 3 has marks of the Node object, whether a pod is fenced, and the numbers of pods that do not match the node.
// Version 4 has the count of the nodes that cannot reach the API server.
const Version = 4

// StateInterval is how often evictd-kube sends its state at least.
const StateInterval = 10 * time.Second

// Message is one line of the protocol. Exactly one field is set.
type Message struct {
	Hello    *Hello    `json:"hello,omitempty"`
	State    *State    `json:"state,omitempty"`
	List     *ListID   `json:"list,omitempty"`
	Pod      *Pod      `json:"pod,omitempty"`
	Gone     *Gone     `json:"gone,omitempty"`
	Listed   *ListID   `json:"listed,omitempty"`
	Accepted *Accepted `json:"accepted,omitempty"`
	Resend   *Resend   `json:"resend,omitempty"`
	Order    *Order    `json:"order,omitempty"`
	Withdraw *OrderID  `json:"withdraw,omitempty"`
	Report   *Report   `json:"report,omitempty"`
	Want     *Want     `json:"want,omitempty"`

	NodeState   *NodeState            `json:"nodeState,omitempty"`
	NodeReport  *NodeReport           `json:"nodeReport,omitempty"`
	ReadKubelet *ReadKubelet          `json:"readKubelet,omitempty"`
	Kubelet     *KubeletConfiguration `json:"kubelet,omitempty"`
	NodeMarks   *NodeMarks            `json:"nodeMarks,omitempty"`
	MarksReport *MarksReport          `json:"marksReport,omitempty"`
}

// Hello is the first message of each side.
type Hello struct {
	Version int `json:"version"`
	// Software is the sender's version, to be shown.
	Software string `json:"software"`
	// Node is the name of the Node object that evictd-kube reads; empty from evictd.
	Node string `json:"node,omitempty"`
	// Lines and Bytes are what evictd reads at once now, see Server; zero from evictd-kube.
	Lines int `json:"lines,omitempty"`
	Bytes int `json:"bytes,omitempty"`
}

// State is the state of evictd-kube's connection to the API server.
type State struct {
	// Connected is set while the pods are watched.
	Connected bool `json:"connected"`
	// AgeMilliseconds is the time since the API server last confirmed the facts; -1 if
	// it never did.
	AgeMilliseconds int64 `json:"ageMilliseconds"`
	// Error is the reason if it is not connected, with the file and the remedy.
	Error string `json:"error,omitempty"`
	// CannotReport is why evictd-kube may not report evictions: a right that it lacks, or an
	// API server that is too old. It is empty if it may.
	CannotReport string `json:"cannotReport,omitempty"`
	// AffinityAdmission has the numbers of pods that came to the node; absent without --affinity-admission=reject.
	AffinityAdmission AffinityAdmission `json:"affinityAdmission,omitzero"`
	// Peers is how many nodes cannot reach the API server; absent if evictd-kube does not ask the others.
	Peers *selffence.Count `json:"peers,omitempty"`
}

// ListID begins and ends a complete list of the node's pods.
type ListID struct {
	ID uint64 `json:"id"`
}

// Gone is sent when a pod has left the API.
type Gone struct {
	UID string `json:"uid"`
}

// Accepted answers a complete list.
type Accepted struct {
	// Pods is the number of pods with facts, and Refused has the first maxNamed facts that
	// evictd refuses.
	Pods    int       `json:"pods"`
	Refused []Refusal `json:"refused,omitempty"`
}

// Resend asks for the complete list again.
type Resend struct{}

// Want asks for the facts about pods that evictd lists and lacks, now or when the API has them.
// A message has at most maxWanted UIDs.
type Want struct {
	UIDs []string `json:"uids"`
}

// Refusal is a fact that evictd does not use, or not in full.
type Refusal struct {
	Pod string `json:"pod"` // namespace/name
	UID string `json:"uid"`
	Why string `json:"why"`
}

// VersionError is returned if the peer speaks another version of the protocol.
type VersionError struct{ Peer Hello }

func (e *VersionError) Error() string {
	return fmt.Sprintf("peer (%s) has version %d of the protocol, this is version %d: install evictd and evictd-kube of the same release",
		printable(e.Peer.Software), e.Peer.Version, Version)
}

// errNoHello is returned if the first line is not a hello.
var errNoHello = errors.New("first line is not a hello")

// decodeHello decodes the first line of a session. It ignores unknown keys and returns
// a *VersionError for another version.
func decodeHello(line []byte) (*Hello, error) {
	var m struct{ Hello *Hello }
	if err := json.Unmarshal(line, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoHello, err)
	}
	switch {
	case m.Hello == nil:
		return nil, errNoHello
	case m.Hello.Version != Version:
		return nil, &VersionError{*m.Hello}
	case len(m.Hello.Node) > maxName || len(m.Hello.Software) > maxName:
		return nil, errors.New("hello with a name that is too long")
	}
	return m.Hello, nil
}

// decode decodes a later line of a session.
func decode(line []byte) (*Message, error) {
	var m Message
	if err := decodeStrict(line, &m); err != nil {
		return nil, fmt.Errorf("malformed message: %w", err)
	}
	n := 0
	for _, set := range []bool{
		m.Hello != nil, m.State != nil, m.List != nil, m.Pod != nil, m.Gone != nil, m.Listed != nil, m.Accepted != nil, m.Resend != nil,
		m.Order != nil, m.Withdraw != nil, m.Report != nil,
		m.Want != nil,
		m.NodeState != nil, m.NodeReport != nil, m.ReadKubelet != nil, m.Kubelet != nil,
		m.NodeMarks != nil, m.MarksReport != nil,
	} {
		if set {
			n++
		}
	}
	if n != 1 {
		return nil, fmt.Errorf("malformed message: %d kinds in one line; want 1", n)
	}
	return &m, nil
}

// maxText is how many bytes of a text from the peer are shown.
const maxText = 500

// ellipsis ends a text that was cut.
const ellipsis = "…"

// printable returns text from the peer in bounded length, with a space for each character
// that can't be printed: control characters, and those that change the direction of text.
func printable(s string) string { return printableUpTo(s, maxText) }

// printableUpTo is printable for a text that is cut at longest bytes, to which the ellipsis is added.
func printableUpTo(s string, longest int) string {
	cut := len(s) > longest
	if cut {
		s = s[:longest]
	}
	out := []rune(s)
	for i, r := range out {
		if !isPrint(r) {
			out[i] = ' '
		}
	}
	if cut {
		return string(out) + ellipsis
	}
	return string(out)
}

// isPrint reports whether a character can be printed. utf8.RuneError stands for bytes that are
// none: it has three, also for one.
func isPrint(r rune) bool { return unicode.IsPrint(r) && r != utf8.RuneError }
