package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/evictd/evictd/agent/kube"
)

// The back-off between two attempts to connect with new credentials: that of client-go's
// reflector, which has its own within a connection.
const firstBackoff, longestBackoff = 800 * time.Millisecond, 30 * time.Second

// bootBackoff is the longest back-off while the Node has another boot ID: after a boot, the kubelet
// may start later than this program.
const bootBackoff = 5 * time.Second

// Options configure Watch.
type Options struct {
	// Kubeconfig is the path of a kubeconfig; empty is the service account of this pod.
	Kubeconfig string
	Node       string
	// BootID is that of this machine: a Node with another one is not used. It is empty if it is not known.
	BootID   string
	Software string // this program's version
	Feed     *kube.Feed
	// Reporter gets the connection and the states of the pods.
	Reporter *Reporter
	// Configz gets the connection.
	Configz *Configz
	// Rejector gets the pods that come to the node; nil if none is rejected.
	Rejector *Rejector
	// Marks gets the connection.
	Marks *Marks
	// PeerNodes gets the connection; nil if the other nodes are not asked.
	PeerNodes *PeerNodes
	Log       *slog.Logger
}

// Watch puts the facts about the pods of the node into the feed until ctx ends.
func Watch(ctx context.Context, o Options) {
	r := &health{feed: o.Feed, log: o.Log}
	backoff := firstBackoff
	for {
		began := time.Now()
		err := o.watch(ctx, r)
		if ctx.Err() != nil {
			return
		}
		r.fail(err)
		if time.Since(began) > 2*longestBackoff {
			backoff = firstBackoff
		}
		if errors.Is(err, errOtherMachine) {
			backoff = min(backoff, bootBackoff)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff/2 + rand.N(backoff/2)):
		}
		backoff = min(2*backoff, longestBackoff)
	}
}

// watch connects and watches until an error that only a new connection can end.
func (o *Options) watch(ctx context.Context, r *health) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	// Nothing else is asked or written before: for another cluster, the pods of this node would be gone,
	// and it may have a node of the same name.
	if err := c.checkNode(ctx, o.Node, o.BootID); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	o.Reporter.connected(c, cancel)
	if o.Marks != nil {
		o.Marks.connected(c, cancel)
	}
	if o.PeerNodes != nil {
		o.PeerNodes.connected(c, cancel)
	}
	if o.Configz != nil {
		o.Configz.connected(c, cancel)
	}
	o.Reporter.awaitRights(ctx)
	failed := func(err error) error {
		err = c.files.explain(err)
		var e *explained
		if errors.As(err, &e) && e.reload {
			cancel(err)
		} else if ctx.Err() == nil {
			r.fail(err)
		}
		return err
	}
	reflector := cache.NewReflectorWithOptions(c.pods(o.Node, failed, o.Reporter.listening), &corev1.Pod{}, &store{o.Feed, r, o.Reporter, o.Rejector}, cache.ReflectorOptions{Name: "pods of " + o.Node})
	reflector.RunWithContext(ctx)
	return context.Cause(ctx)
}

// pods lists and watches the pods of a node. An error goes to failed too, because the
// reflector retries some of them by itself. listening is called when the API server has accepted
// a request.
func (c *client) pods(node string, failed func(error) error, listening func()) *cache.ListWatch {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			list := &corev1.PodList{}
			if err := c.rest.Get().Resource("pods").VersionedParams(&options, parameterCodec).Do(ctx).Into(list); err != nil {
				return nil, report(err, failed)
			}
			listening()
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector, options.Watch = selector, true
			w, err := c.rest.Get().Resource("pods").VersionedParams(&options, parameterCodec).Watch(ctx)
			if apierrors.IsInvalid(err) && options.SendInitialEvents != nil {
				return nil, err // before Kubernetes 1.34; the reflector then lists
			}
			if err != nil {
				return nil, report(err, failed)
			}
			listening()
			return w, nil // confirms no facts: the list is to come, or an error such as 410
		},
	}
}

// report passes an error on to failed, and returns it unchanged, because the reflector
// decides by its type. A resource version that is too old is not reported: the reflector
// lists again.
func report(err error, failed func(error) error) error {
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !errors.Is(err, context.Canceled) {
		_ = failed(err)
	}
	return err
}

// store passes the reflector's pods on to the feed and to the Reporter. It keeps none.
type store struct {
	feed     *kube.Feed
	r        *health
	reporter *Reporter
	rejector *Rejector
}

// Add is called for a pod that was bound to the node since the list.
func (s *store) Add(obj any) error {
	if p, ok := obj.(*corev1.Pod); ok {
		s.rejector.arrived(p)
	}
	return s.Update(obj)
}

func (s *store) Update(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("%T instead of a pod", obj)
	}
	s.reporter.observe(p)
	s.rejector.observe(p)
	if relevant(p) {
		s.feed.Put(factsOf(p))
	} else {
		s.feed.Remove(string(p.UID))
	}
	s.r.confirm()
	return nil
}

func (s *store) Delete(obj any) error {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("%T instead of a pod", obj)
	}
	s.reporter.gone(string(p.UID))
	s.rejector.gone(string(p.UID))
	s.feed.Remove(string(p.UID))
	s.r.confirm()
	return nil
}

func (s *store) Replace(list []any, _ string) error {
	pods := make([]*kube.Pod, 0, len(list))
	states := make(map[string]*listed, len(list))
	for _, obj := range list {
		obj, err := reduce(obj) // a list without a watch is not transformed
		if err != nil {
			return err
		}
		l := obj.(*listed)
		states[l.uid] = l
		if l.facts != nil {
			pods = append(pods, l.facts)
		}
	}
	s.reporter.replace(states)
	s.rejector.replace(states)
	s.feed.Replace(pods)
	s.r.confirm()
	return nil
}

// Transformer implements cache.TransformingStore: while the reflector receives a list, it
// keeps the facts instead of the pods, which can have 1.5 MB each.
func (s *store) Transformer() cache.TransformFunc { return reduce }

// listed is what is kept of a pod in a list.
type listed struct {
	uid       string
	version   string // the resource version
	state     podState
	unstarted bool
	facts     *kube.Pod // nil if evictd needs none
}

// listedOf returns what is kept of a pod, without the facts.
func listedOf(p *corev1.Pod) *listed {
	return &listed{uid: string(p.UID), version: strings.Clone(p.ResourceVersion), state: stateOf(p), unstarted: unstarted(p)}
}

// reduce returns what is kept of a pod as a *listed.
func reduce(obj any) (any, error) {
	switch p := obj.(type) {
	case *listed:
		return p, nil
	case *corev1.Pod:
		l := listedOf(p)
		if relevant(p) {
			l.facts = factsOf(p)
		}
		return l, nil
	}
	return nil, fmt.Errorf("%T instead of a pod", obj)
}

func (s *store) Resync() error { return nil }

// Bookmark implements cache.ReflectorBookmarkStore. The API server sends one about
// every minute.
func (s *store) Bookmark(string) error {
	s.r.confirm()
	return nil
}

// health reports to evictd whether the pods are watched, and logs each failure once.
type health struct {
	feed *kube.Feed
	log  *slog.Logger
	mu   sync.Mutex
	last string // the last failure that was logged; "" while the pods are watched
	ever bool   // whether the pods were ever watched
}

func (r *health) confirm() {
	r.feed.Confirm(time.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last != "" || !r.ever {
		r.log.Info("watching the pods of the node", "node", r.feed.NodeName)
	}
	r.last, r.ever = "", true
}

func (r *health) fail(err error) {
	text := oneLine(err.Error())
	r.feed.Fail(text)
	r.mu.Lock()
	defer r.mu.Unlock()
	if text != r.last {
		r.log.Warn("pods are not watched; evictd keeps the facts that it has", "error", text)
	}
	r.last = text
}
