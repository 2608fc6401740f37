package fencing

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/evictd/evictd/tests/controlplane"
)

// Enforce is a policy with short times: a node is fenced as soon as it is not ready, however many were before. The
// interval of the readings of a proof is the default.
var Enforce = map[string]string{
	"mode": "enforce", "grace": "8s", "proof_timeout": "20s", "settle": "2s", "untaint_delay": "5s", "return_timeout": "30s",
	"healthy_delay": "3s", "backoff": "2s", "total_timeout": "2m", "rate": "1s", "burst": "100", "cooldown": "0s",
}

// Configure creates the configuration of evictd-controller: a policy, and for each machine the methods bmc-off and
// bmc-on of its BMC.
func (c *Cluster) Configure(ctx context.Context, policy map[string]string) error {
	secret := corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "fence-method-template-bmc"}, StringData: map[string]string{"password": password},
	}
	if err := c.Admin.Create(ctx, "/api/v1/namespaces/"+Namespace+"/secrets", secret); err != nil {
		return fmt.Errorf("configure fencing: %w", err)
	}
	objects := []corev1.ConfigMap{
		configMap("cluster-fence-config", "config.properties", policy),
		configMap("fence-method-template-bmc", "template.properties", map[string]string{
			"name": "bmc", "agent_name": "ipmi", "username": username, "timeout": "10s",
		}),
	}
	for name, sim := range c.BMCs {
		host, port, err := net.SplitHostPort(sim.Endpoint())
		if err != nil {
			return err
		}
		objects = append(objects, configMap("fence-config-"+name, "config.properties", map[string]string{
			"node_name": name, "power_management": "bmc-off bmc-on",
		}))
		for _, action := range []string{"off", "on"} {
			objects = append(objects, configMap("fence-method-bmc-"+action+"-"+name, "method.properties", map[string]string{
				"template": "fence-method-template-bmc", "action": action, "ip": host, "ipport": port,
			}))
		}
	}
	for _, m := range objects {
		if err := c.Admin.Create(ctx, "/api/v1/namespaces/"+Namespace+"/configmaps", m); err != nil {
			return fmt.Errorf("configure fencing: %w", err)
		}
	}
	return nil
}

// setMethods gives a machine other methods of power management.
func (c *Cluster) setMethods(ctx context.Context, name, methods string) error {
	m := configMap("fence-config-"+name, "config.properties", map[string]string{"node_name": name, "power_management": methods})
	path := "/api/v1/namespaces/" + Namespace + "/configmaps/fence-config-" + name
	return c.Admin.Patch(ctx, path, controlplane.MergePatch, fields{"data": m.Data})
}

// setAddress gives the BMC of a machine another name of its address.
func (c *Cluster) setAddress(ctx context.Context, name, host string) error {
	_, port, err := net.SplitHostPort(c.BMCs[name].Endpoint())
	if err != nil {
		return err
	}
	for _, action := range []string{"off", "on"} {
		m := configMap("fence-method-bmc-"+action+"-"+name, "method.properties", map[string]string{
			"template": "fence-method-template-bmc", "action": action, "ip": host, "ipport": port,
		})
		path := "/api/v1/namespaces/" + Namespace + "/configmaps/" + m.Name
		if err := c.Admin.Patch(ctx, path, controlplane.MergePatch, fields{"data": m.Data}); err != nil {
			return err
		}
	}
	return nil
}

// configMap returns a ConfigMap with one key, whose value has a line for each property.
func configMap(name, key string, properties map[string]string) corev1.ConfigMap {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(properties)) {
		fmt.Fprintf(&b, "%s=%s\n", k, properties[k])
	}
	return corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{key: b.String()}}
}
