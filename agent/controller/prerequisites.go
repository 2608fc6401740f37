package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	authorization "k8s.io/client-go/kubernetes/typed/authorization/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/evictd/evictd/agent/controller/affinity"
	"github.com/evictd/evictd/agent/fence/nodefence"
)

const (
	// The back-off of the wait for the prerequisites.
	firstStartBackoff, longestStartBackoff = time.Second, 30 * time.Second
	// requestTimeout bounds each request of it.
	requestTimeout = 10 * time.Second
	// reviewers is how many rights are asked for at the same time. One after the other, more than fifty answers of a slow
	// API server take minutes, in which no node is fenced, and then longer than the startup probe of the Deployment waits.
	reviewers = 10
)

// right is what the account must be allowed to do with a resource, in all namespaces if none is named.
type right struct {
	namespace, group, resource, name string
	verbs                            []string
}

// rights are those of deploy/kubernetes/controller/rbac.yaml, without the rights to create events: without those there
// are no events, and fencing goes on.
func rights(namespace string, elect bool, mode affinity.Mode) []right {
	list := []right{
		{resource: "nodes", verbs: []string{"get", "list", "watch", "patch"}},
		{resource: "nodes/status", verbs: []string{"patch"}},
		{resource: "pods", verbs: []string{"list", "delete"}},
		{group: "storage.k8s.io", resource: "volumeattachments", verbs: []string{"list", "delete"}},
		{resource: "persistentvolumes", verbs: []string{"get"}},
		{resource: "persistentvolumeclaims", verbs: []string{"get"}},
		{group: nodefence.GroupVersion.Group, resource: "nodefences", verbs: []string{"get", "list", "watch", "create", "update", "delete"}},
		{namespace: leaseNamespace, group: coordinationv1.GroupName, resource: "leases", verbs: []string{"get", "list"}},
		{resource: "namespaces", name: remediatorNamespace, verbs: []string{"get"}},
		{namespace: namespace, resource: "configmaps", verbs: []string{"get", "list", "watch"}},
		{namespace: namespace, resource: "configmaps", name: drillsName, verbs: []string{"patch"}},
		{namespace: namespace, resource: "secrets", verbs: []string{"get", "list", "watch"}},
	}
	if mode != affinity.Off {
		list = append(list, affinityRights()...)
	}
	if elect {
		list = append(list,
			right{namespace: namespace, group: coordinationv1.GroupName, resource: "leases", verbs: []string{"create"}},
			right{
				namespace: namespace, group: coordinationv1.GroupName, resource: "leases", name: leaseName,
				verbs: []string{"get", "update"},
			})
	}
	return list
}

// remediatorRights are those of deploy/kubernetes/controller/medik8s/rbac.yaml. They are needed if the namespace
// exists.
var remediatorRights = []right{{
	namespace: remediatorNamespace, group: coordinationv1.GroupName, resource: "leases",
	verbs: []string{"get", "create", "update", "delete"},
}}

// executorRights are those of deploy/kubernetes/controller/jobs. They are needed if there is an image for Jobs.
func executorRights(namespace string) []right {
	return []right{
		{namespace: namespace, group: batchv1.GroupName, resource: "jobs", verbs: []string{"get", "create", "delete"}},
		{namespace: namespace, resource: "secrets", verbs: []string{"create", "delete"}},
		{namespace: namespace, resource: "pods", verbs: []string{"list"}},
	}
}

// prerequisites are what the controller needs of the API server before it can start.
type prerequisites struct {
	types      *discovery.DiscoveryClient
	access     authorization.SelfSubjectAccessReviewInterface
	leases     coordination.LeaseInterface
	namespaces core.NamespaceInterface
	namespace  string
	elect      bool
	jobs       bool
	mode       affinity.Mode
	// certificate is true if the controller makes one for its webhook.
	certificate bool
}

func newPrerequisites(config *rest.Config, o *Options) (*prerequisites, error) {
	config = rest.CopyConfig(config)
	config.Timeout, config.QPS = requestTimeout, -1 // about fifty requests in all, few at the same time
	types, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	access, err := authorization.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	leases, err := coordination.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := core.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &prerequisites{
		types, access.SelfSubjectAccessReviews(), leases.Leases(o.Namespace), objects.Namespaces(), o.Namespace, o.LeaderElect,
		o.ExecutorImage != "", o.Affinity, o.keepsCertificate(),
	}, nil
}

// awaitPrerequisites waits until the API server answers, has the type NodeFence and the namespace, and allows all that
// the controller does. A right that is missing would else be found in the middle of a fence.
func awaitPrerequisites(ctx context.Context, config *rest.Config, o *Options) error {
	p, err := newPrerequisites(config, o)
	if err != nil {
		return fmt.Errorf("client of the API server: %w: correct the kubeconfig", err)
	}
	last, backoff := "", firstStartBackoff
	for {
		err := p.check(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return nil // stopped
		case err.Error() != last:
			o.Log.Warn("could not start; no node is fenced, and it is tried again", "error", err)
			last = err.Error()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, longestStartBackoff)
	}
}

// check returns an error that says what is missing, with the remedy.
func (p *prerequisites) check(ctx context.Context) error {
	group := nodefence.GroupVersion.String()
	switch _, err := p.types.ServerResourcesForGroupVersionWithContext(ctx, group); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the API server has no NodeFence (%s): install deploy/kubernetes/controller/crd", group)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server refuses the credentials: %w: renew the token or the kubeconfig", err)
	case err != nil:
		return fmt.Errorf("ask the API server for NodeFence: %w: check its address, and the network from here to it", err)
	}
	if err := p.checkRights(ctx, rights(p.namespace, p.elect, p.mode), "deploy/kubernetes/controller/rbac.yaml"); err != nil {
		return err
	}
	if p.certificate {
		if err := p.checkRights(ctx, webhookRights(p.namespace), "deploy/kubernetes/controller-serving"); err != nil {
			return err
		}
	}
	if p.jobs {
		if err := p.checkRights(ctx, executorRights(p.namespace), "deploy/kubernetes/controller/jobs"); err != nil {
			return err
		}
	}
	switch _, err := p.namespaces.Get(ctx, remediatorNamespace, metav1.GetOptions{}); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("read namespace %s: %w", remediatorNamespace, err)
	default:
		if err := p.checkRights(ctx, remediatorRights, "deploy/kubernetes/controller/medik8s"); err != nil {
			return err
		}
	}
	if err := p.checkObjects(ctx); err != nil {
		return err
	}
	if !p.elect {
		return nil
	}
	// The account can't read the namespace. Nothing is created, and a Lease that exists proves the namespace, too.
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName}}
	_, err := p.leases.Create(ctx, lease, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil || apierrors.IsAlreadyExists(err):
		return nil
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no namespace %s: create it, or set --namespace to the one of the ConfigMaps", p.namespace)
	}
	return fmt.Errorf("try to create Lease %s/%s: %w", p.namespace, leaseName, err)
}

// checkObjects returns an error if objects of other remediators can't be listed. They are needed of the kinds that exist.
func (p *prerequisites) checkObjects(ctx context.Context) error {
	kinds, err := installedKinds(ctx, p.types)
	if err != nil {
		return err
	}
	wanted := listRights(kinds)
	for _, manifest := range slices.Sorted(maps.Keys(wanted)) {
		if err := p.checkRights(ctx, wanted[manifest], manifest); err != nil {
			return err
		}
	}
	return nil
}

// checkRights returns an error with the rights that the account does not have. The manifest grants them.
func (p *prerequisites) checkRights(ctx context.Context, wanted []right, manifest string) error {
	missing, err := p.missing(ctx, wanted)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return errors.New("the account lacks rights: " + strings.Join(missing, ", ") + ": apply " + manifest)
	}
	return nil
}

// missing returns the rights that the account does not have.
func (p *prerequisites) missing(ctx context.Context, wanted []right) ([]string, error) {
	var reviews []*review
	for _, r := range wanted {
		for _, verb := range r.verbs {
			reviews = append(reviews, &review{right: r, verb: verb})
		}
	}
	if err := p.ask(ctx, reviews); err != nil {
		return nil, fmt.Errorf("ask the API server for the account's rights: %w", err)
	}
	var list []string
	for _, r := range wanted {
		n := len(r.verbs)
		var verbs []string
		for _, x := range reviews[:n] {
			if !x.allowed {
				verbs = append(verbs, x.verb)
			}
		}
		reviews = reviews[n:]
		if len(verbs) > 0 {
			list = append(list, r.String()+" "+strings.Join(verbs, "/"))
		}
	}
	return list, nil
}

// review is whether the account may do one verb of a right.
type review struct {
	right
	verb    string
	allowed bool
}

// ask asks for reviews, some at the same time, until one fails.
func (p *prerequisites) ask(ctx context.Context, reviews []*review) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *review)
	var asking sync.WaitGroup
	for range reviewers {
		asking.Go(func() {
			for r := range next {
				if err := r.ask(ctx, p.access); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, r := range reviews {
		if ctx.Err() != nil {
			break
		}
		next <- r
	}
	close(next)
	asking.Wait()
	return context.Cause(ctx)
}

func (r *review) ask(ctx context.Context, access authorization.SelfSubjectAccessReviewInterface) error {
	resource, subresource, _ := strings.Cut(r.resource, "/")
	answer, err := access.Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: r.namespace, Group: r.group, Resource: resource, Subresource: subresource, Name: r.name, Verb: r.verb,
		},
	}}, metav1.CreateOptions{})
	if err == nil {
		r.allowed = answer.Status.Allowed
	}
	return err
}

func (r right) String() string {
	s := r.resource
	if r.group != "" {
		s += "." + r.group
	}
	if r.name != "" {
		s += " " + r.name
	}
	if r.namespace != "" {
		s += " in " + r.namespace
	}
	return s
}
