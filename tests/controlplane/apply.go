package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Apply applies the objects of a manifest, as kubectl apply --server-side does. The API server must know their kinds.
func (c *Client) Apply(ctx context.Context, manifest []byte) error {
	for doc := range bytes.SplitSeq(manifest, []byte("\n---\n")) {
		path, err := ObjectPath(doc)
		if err != nil {
			return err
		}
		if _, err := c.Request(ctx, http.MethodPatch, path+"?fieldManager=test&force=true", ApplyPatch, doc); err != nil {
			return err
		}
	}
	return nil
}

// ObjectPath returns the API path of an object. It is in a namespace if it names one.
func ObjectPath(doc []byte) (string, error) {
	var o struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name, Namespace string }
	}
	if err := yaml.Unmarshal(doc, &o); err != nil {
		return "", fmt.Errorf("decode a manifest: %w", err)
	}
	if o.APIVersion == "" || o.Kind == "" || o.Metadata.Name == "" {
		return "", fmt.Errorf("decode a manifest: no apiVersion, kind or name in %.200q", doc)
	}
	path := "/apis/" + o.APIVersion
	if !strings.Contains(o.APIVersion, "/") {
		path = "/api/" + o.APIVersion
	}
	if o.Metadata.Namespace != "" {
		path += "/namespaces/" + o.Metadata.Namespace
	}
	return path + "/" + plural(o.Kind) + "/" + o.Metadata.Name, nil
}

// plural returns the resource of a kind, of which each of Kubernetes' is the plural.
func plural(kind string) string {
	resource := strings.ToLower(kind)
	switch {
	case strings.HasSuffix(resource, "y"):
		return strings.TrimSuffix(resource, "y") + "ies"
	case strings.HasSuffix(resource, "s"):
		return resource + "es"
	}
	return resource + "s"
}
