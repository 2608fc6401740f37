package kube

import (
	"cmp"
	"context"
	"encoding/pem"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/evictd/evictd/agent/signal"
)

// kubeletFacts are what is known of the kubelet's configuration. Facts.mu protects them.
type kubeletFacts struct {
	configuration KubeletConfiguration
	at            time.Time          // when the configuration was last read; zero if it never was
	hard          []signal.Threshold // the configuration's hard thresholds
	err           string             // why it can't be read now; "" if it can, or if evictd-kube has not said
	process       string             // the kubelet that runs, see SeeKubelet; "" if none does
	last          string             // the last kubelet that ran; "" if none was seen
	of            string             // last, when the configuration was read
	failedAt      time.Time          // of the first failure since evictd last asked because of one
	wake          chan struct{}      // asks for the configuration
}

// Kubelet returns the kubelet's configuration and when it was last read; ok is false if it is not
// known. It is also known from an earlier run, and if the last attempt to read it has failed. It
// must not be changed.
func (f *Facts) Kubelet() (c KubeletConfiguration, at time.Time, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kubelet.configuration, f.kubelet.at, !f.kubelet.at.IsZero()
}

// KubeletShutsDown returns whether the kubelet stops the pods when the node shuts down. known is false
// if its configuration is not known, or is that of a kubelet that ran before.
func (f *Facts) KubeletShutsDown() (yes, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := &f.kubelet
	return k.configuration.ShutsDown(), !k.at.IsZero() && (k.last == "" || k.last == k.of)
}

// KubeletThresholds returns the kubelet's hard thresholds; nil if its configuration is not known, or
// if f is nil. They must not be changed.
func (f *Facts) KubeletThresholds() []signal.Threshold {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kubelet.hard
}

// KubeletError returns why the kubelet's configuration can't be read now; "" if it was read, or if
// evictd-kube has said nothing about it.
func (f *Facts) KubeletError() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kubelet.err
}

// SeeKubelet asks for the kubelet's configuration if another kubelet runs than at the last call.
// process identifies it, for all times; it is "" if none runs. A nil f asks for nothing.
func (f *Facts) SeeKubelet(process string) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if process != f.kubelet.process && process != "" {
		wakeUp(f.kubelet.wake)
	}
	f.kubelet.process = process
	f.kubelet.last = cmp.Or(process, f.kubelet.last)
}

// setKubelet stores what evictd-kube sends about the kubelet's configuration. It returns whether
// the configuration has changed.
func (f *Facts) setKubelet(c *KubeletConfiguration, now time.Time) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kubelet.err = c.Error
	if c.Error != "" {
		f.askAfterFailure(now)
		return false
	}
	f.kubelet.failedAt = time.Time{}
	changed = f.kubelet.at.IsZero() || !reflect.DeepEqual(f.kubelet.configuration, *c)
	f.kubelet.configuration, f.kubelet.at, f.kubelet.of = *c, now, f.kubelet.last
	f.version++ // to save when it was read
	if changed {
		f.kubelet.hard = c.hardThresholds()
		f.changed = true
	}
	return changed
}

// failureInterval is the time between two requests because of failures.
const failureInterval = 5 * time.Minute

// askAfterFailure asks for the configuration with the present certificates, when it could not be
// read for failureInterval: the kubelet renews its certificate without a restart.
func (f *Facts) askAfterFailure(now time.Time) {
	if f.kubelet.failedAt.IsZero() {
		f.kubelet.failedAt = now
	}
	if now.Sub(f.kubelet.failedAt) >= failureInterval {
		f.kubelet.failedAt = now
		wakeUp(f.kubelet.wake)
	}
}

// hardThresholds returns the hard thresholds that evictd understands, with their minimum reclaims,
// in the order of signals. The kubelet has merged its defaults before it answers. A threshold
// that evictd does not understand is left out: evictd then evicts for its signal.
func (c *KubeletConfiguration) hardThresholds() []signal.Threshold {
	list := []signal.Threshold{}
	for _, s := range signal.All() {
		value, err := signal.ParseThreshold(c.EvictionHard[s.String()])
		if err != nil || signal.HasBoth(c.EvictionHard[s.String()]) {
			continue
		}
		t := signal.Threshold{Signal: s, Value: value}
		if reclaim, err := signal.ParseMinReclaim(c.EvictionMinimumReclaim[s.String()]); err == nil {
			t.MinReclaim = reclaim
		}
		list = append(list, t)
	}
	return list
}

// thresholdTexts formats thresholds for the log.
func thresholdTexts(list []signal.Threshold) (texts []string) {
	for _, t := range list {
		texts = append(texts, t.Signal.String()+"<"+t.Value.String())
	}
	return texts
}

// kubeletAsker asks evictd-kube for the kubelet's configuration: at the beginning of each session,
// and when another kubelet runs.
type kubeletAsker struct {
	mu  sync.Mutex
	out *outbox // of the session; nil while there is none
}

// attach begins to ask in a session.
func (a *kubeletAsker) attach(out *outbox, wake chan struct{}) {
	a.mu.Lock()
	a.out = out
	a.mu.Unlock()
	wakeUp(wake)
}

// detach ends asking in a session.
func (a *kubeletAsker) detach(out *outbox) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.out == out {
		a.out = nil
	}
}

// certificatesTimeout is how long a request waits for the certificates.
const certificatesTimeout = 10 * time.Second

// run asks until ctx ends. Reading the certificates may hang, like all of the kubelet's directory:
// after certificatesTimeout it asks without, and again once they have been read.
func (a *kubeletAsker) run(ctx context.Context, wake <-chan struct{}, certificates func() string, log *slog.Logger) {
	read := make(chan string, 1)
	var reading, again bool // again: asked for since the read began
	var late <-chan time.Time
	var logged LogLimiter
	begin := func() {
		reading, again = true, false
		go func() { read <- certificates() }()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
			if again = reading; !reading {
				begin()
			}
			if late == nil {
				late = time.After(certificatesTimeout)
			}
		case text := <-read:
			reading = false
			if again {
				begin() // the kubelet may have a new one
				continue
			}
			late = nil
			kept, dropped := fitting(text)
			if dropped > 0 {
				if _, ok := logged.Allow(time.Now()); ok {
					log.Warn("serving certificates of the kubelet are too long for evictd-kube; its configuration may stay unknown",
						"dropped", dropped, "limit_bytes", maxCertificates)
				}
			}
			a.ask(kept)
		case <-late:
			late = nil
			if _, ok := logged.Allow(time.Now()); ok {
				log.Warn("serving certificates of the kubelet can't be read yet; evictd-kube recognizes the kubelet only by a certificate of the cluster's CA")
			}
			a.ask("")
		}
	}
}

// ask sends a request in the session, if there is one.
func (a *kubeletAsker) ask(certificates string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.out != nil {
		a.out.message(&Message{ReadKubelet: &ReadKubelet{Certificates: certificates}})
	}
}

// fitting returns those of the certificates (PEM) that fit into a request, and how many do not.
func fitting(certificates string) (kept string, dropped int) {
	for rest := []byte(certificates); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return kept, dropped
		}
		if text := pem.EncodeToMemory(block); len(kept)+len(text) <= maxCertificates {
			kept += string(text)
		} else {
			dropped++
		}
	}
}
