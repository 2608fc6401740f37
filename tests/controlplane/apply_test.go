package controlplane

import "testing"

func TestObjectPath(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b}", "/api/v1/namespaces/b/configmaps/a"},
		{"apiVersion: v1\nkind: Namespace\nmetadata: {name: a}", "/api/v1/namespaces/a"},
		{"apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: a}", "/apis/scheduling.k8s.io/v1/priorityclasses/a"},
		{"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a, namespace: b}", "/apis/networking.k8s.io/v1/namespaces/b/networkpolicies/a"},
	} {
		if got, err := ObjectPath([]byte(c.doc)); got != c.want || err != nil {
			t.Errorf("ObjectPath(%q) = %q, %v; want %q", c.doc, got, err, c.want)
		}
	}
	for _, doc := range []string{"", "kind: Node", "a: [", "apiVersion: v1\nkind: Node"} {
		if got, err := ObjectPath([]byte(doc)); err == nil {
			t.Errorf("ObjectPath(%q) = %q; want an error", doc, got)
		}
	}
}
