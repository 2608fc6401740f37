package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

const (
	// discoveryInterval is for how long the kinds that the API server has are not asked for again: so late is a kind
	// noticed whose CustomResourceDefinition is created. Nothing is asked while there is no fence.
	discoveryInterval = 30 * time.Second
	// The manifests that grant the rights to list objects of remediators.
	medik8sObjects    = "deploy/kubernetes/controller/medik8s/objects"
	clusterAPIObjects = "deploy/kubernetes/controller/cluster-api"
)

// remediatorKind is a kind of objects by which a remediator, or a MachineHealthCheck, works on a node.
type remediatorKind struct {
	group, resource, kind string
	// manifest grants the right to list the objects.
	manifest string
	// ends is true if the condition Processing=False of an object says that the remediator does nothing more.
	ends bool
	// version is one that the API server has, empty in remediatorKinds.
	version string
}

// The kinds that are not named like the node that they are for.
const (
	kindMachine     = "Machine"
	kindMaintenance = "NodeMaintenance"
)

// remediatorKinds are all kinds that are known. Machines come first, because objects of the other kinds name them.
var remediatorKinds = []remediatorKind{
	{group: "cluster.x-k8s.io", resource: "machines", kind: kindMachine, manifest: clusterAPIObjects},
	{group: "machine.openshift.io", resource: "machines", kind: kindMachine, manifest: clusterAPIObjects},
	{group: "infrastructure.cluster.x-k8s.io", resource: "metal3remediations", kind: "Metal3Remediation", manifest: clusterAPIObjects},
	{group: "nodemaintenance.medik8s.io", resource: "nodemaintenances", kind: kindMaintenance, manifest: medik8sObjects},
	{group: "fence-agents-remediation.medik8s.io", resource: "fenceagentsremediations", kind: "FenceAgentsRemediation", manifest: medik8sObjects, ends: true},
	{group: "self-node-remediation.medik8s.io", resource: "selfnoderemediations", kind: "SelfNodeRemediation", manifest: medik8sObjects, ends: true},
	{group: "machine-deletion-remediation.medik8s.io", resource: "machinedeletionremediations", kind: "MachineDeletionRemediation", manifest: medik8sObjects, ends: true},
	{group: "storage-based-remediation.medik8s.io", resource: "storagebasedremediations", kind: "StorageBasedRemediation", manifest: medik8sObjects, ends: true},
	{group: "customized-user-remediation.medik8s.io", resource: "customizeduserremediations", kind: "CustomizedUserRemediation", manifest: medik8sObjects},
}

// listRights returns what an account needs to list the objects of kinds, by the manifest that grants it.
func listRights(kinds []remediatorKind) map[string][]right {
	rights := make(map[string][]right)
	for _, k := range kinds {
		rights[k.manifest] = append(rights[k.manifest], right{group: k.group, resource: k.resource, verbs: []string{"list"}})
	}
	return rights
}

// installedKinds returns the kinds that the API server has. The answer does not depend on the rights to list objects.
func installedKinds(ctx context.Context, client *discovery.DiscoveryClient) ([]remediatorKind, error) {
	body, err := client.RESTClient().Get().AbsPath("/apis").SetHeader("Accept", discovery.AcceptV1).Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("ask the API server for its groups: %w", err)
	}
	var groups metav1.APIGroupList
	if err := json.Unmarshal(body, &groups); err != nil {
		return nil, fmt.Errorf("decode the groups of the API server: %w", err)
	}
	var installed []remediatorKind
	for _, k := range remediatorKinds {
		i := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == k.group })
		if i < 0 {
			continue
		}
		if k.version, err = servedVersion(ctx, client, &groups.Groups[i], k.resource); err != nil {
			return nil, err
		}
		if k.version != "" {
			installed = append(installed, k)
		}
	}
	return installed, nil
}

// servedVersion returns the version of a resource that the API server prefers, empty if no version of the group has it.
func servedVersion(ctx context.Context, client *discovery.DiscoveryClient, g *metav1.APIGroup, resource string) (string, error) {
	versions := append([]metav1.GroupVersionForDiscovery{g.PreferredVersion}, g.Versions...)
	for i, v := range versions {
		if i > 0 && v == g.PreferredVersion {
			continue
		}
		list, err := client.ServerResourcesForGroupVersionWithContext(ctx, v.GroupVersion)
		switch {
		case apierrors.IsNotFound(err):
			continue // removed since the groups were read
		case err != nil:
			return "", fmt.Errorf("ask the API server for the kinds of %s: %w", v.GroupVersion, err)
		}
		if slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }) {
			return v.Version, nil
		}
	}
	return "", nil
}

// kindDiscovery remembers which kinds the API server has.
type kindDiscovery struct {
	client *discovery.DiscoveryClient

	mu    sync.Mutex
	kinds []remediatorKind
	asked time.Time // when kinds were read, zero before
}

func newKindDiscovery(config *rest.Config) (*kindDiscovery, error) {
	config = rest.CopyConfig(config)
	config.Timeout = requestTimeout
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for the kinds of remediators: %w", err)
	}
	return &kindDiscovery{client: client}, nil
}

// installed returns the kinds that the API server has, or if fresh is false had within discoveryInterval.
func (d *kindDiscovery) installed(ctx context.Context, fresh bool) ([]remediatorKind, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if !fresh && !d.asked.IsZero() && now.Sub(d.asked) < discoveryInterval {
		return d.kinds, nil
	}
	kinds, err := installedKinds(ctx, d.client)
	if err != nil {
		return nil, err
	}
	d.kinds, d.asked = kinds, now
	return kinds, nil
}
