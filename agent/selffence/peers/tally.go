package peers

import (
	"time"

	"github.com/evictd/evictd/agent/selffence"
)

// tally has the questions without an answer and the answers of the nodes. Its times are those since the boot.
type tally struct {
	asked map[string]asked
	// votes has when those nodes were asked that cannot reach the API server.
	votes map[string]time.Duration
}

type asked struct {
	nonce [nonceSize]byte
	at    time.Duration
}

func newTally() tally { return tally{map[string]asked{}, map[string]time.Duration{}} }

// ask returns the nonce of a new question to a node. The answer to an earlier one does not count any more.
func (t *tally) ask(node string, now time.Duration) [nonceSize]byte {
	a := asked{newNonce(), now}
	t.asked[node] = a
	return a.nonce
}

// answer takes the answer to a question.
func (t *tally) answer(node string, nonce [nonceSize]byte, k kind) {
	a, ok := t.asked[node]
	if !ok || a.nonce != nonce {
		return
	}
	delete(t.asked, node)
	if k == cannot {
		t.votes[node] = a.at
	} else {
		delete(t.votes, node)
	}
}

// keep forgets the nodes that are not in the list.
func (t *tally) keep(listed func(node string) bool) {
	for node := range t.asked {
		if !listed(node) {
			delete(t.asked, node)
		}
	}
	for node := range t.votes {
		if !listed(node) {
			delete(t.votes, node)
		}
	}
}

// count returns how many nodes have said that they cannot reach the API server and still count.
func (t *tally) count(now time.Duration) (n int) {
	for _, at := range t.votes {
		if now-at < selffence.AnswerValid {
			n++
		}
	}
	return n
}
