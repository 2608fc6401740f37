package nodefence

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Each name of a node, up to the longest, has an object name of its own that the API server accepts.
func TestObjectName(t *testing.T) {
	long := strings.Repeat("n", 242)
	names := map[string]string{}
	for _, node := range []string{
		"n1", "host1.example.com", long, long + "n", long + "nn", strings.Repeat("n", 225) + "." + strings.Repeat("m", 20),
		strings.Repeat("n", 224) + "--" + strings.Repeat("m", 27), strings.Repeat("a.", 126) + "a",
	} {
		if problems := validation.IsDNS1123Subdomain(node); problems != nil {
			t.Fatalf("%s is no name of a node: %v", node, problems)
		}
		name := ObjectName(node)
		if problems := validation.IsDNS1123Subdomain(name); problems != nil {
			t.Errorf("ObjectName(%q) = %q: %v", node, name, problems)
		}
		if other, ok := names[name]; ok {
			t.Errorf("ObjectName(%q) = ObjectName(%q)", node, other)
		}
		names[name] = node
		if len(node) <= 242 && name != "node-fence-"+node {
			t.Errorf("ObjectName(%q) = %q; want node-fence-NODE", node, name)
		}
		// The rule of the CustomResourceDefinition.
		if len(node) > 242 && (len(name) != 253 || !strings.HasPrefix(name, "node-fence-"+node[:226])) {
			t.Errorf("ObjectName(%q) = %q; want 253 characters that begin with those of the node", node, name)
		}
	}
}
