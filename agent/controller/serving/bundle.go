package serving

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// ConfigurationName is the name of the MutatingWebhookConfiguration, and WebhookName that of the webhook in it.
	ConfigurationName = "evictd-controller"
	WebhookName       = "node-affinity.evictd.io"

	// bundleInterval is the time between two writes of the same bundle. Another program may write it, too.
	bundleInterval = time.Minute
)

// errBundle is a bundle that changed again.
var errBundle = errors.New("its caBundle changed again within " + bundleInterval.String() + " after it was set; does another program, such as cert-manager's cainjector, set it, too?")

// writeBundle sets the caBundle of the webhook, if it is there and has another one. Nothing else of the configuration
// changes, and no other webhook in it.
func (k *Keeper) writeBundle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	object := &admissionregistrationv1.MutatingWebhookConfiguration{}
	err := k.Reader.Get(ctx, types.NamespacedName{Name: ConfigurationName}, object)
	if apierrors.IsNotFound(err) {
		return nil // the server is used by schedulers only
	}
	if err != nil {
		return fmt.Errorf("read MutatingWebhookConfiguration %s: %w", ConfigurationName, err)
	}
	want := k.known.bundle()
	patch, err := bundlePatch(object, want)
	if patch == nil || err != nil {
		return err
	}
	if bytes.Equal(want, k.bundle) && time.Since(k.bundleAt) < bundleInterval {
		return fmt.Errorf("MutatingWebhookConfiguration %s: %w", ConfigurationName, errBundle)
	}
	if err := k.Writer.Patch(ctx, object, client.RawPatch(types.JSONPatchType, patch)); err != nil {
		return fmt.Errorf("set the caBundle of MutatingWebhookConfiguration %s: %w", ConfigurationName, err)
	}
	k.bundle, k.bundleAt = want, time.Now()
	k.Log.Info("authority of the serving certificate set", "object", "MutatingWebhookConfiguration "+ConfigurationName)
	return nil
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// bundlePatch returns the patch that sets the bundle of the webhook, nil if it has it, or if there is no such webhook.
// It fails if the object has changed.
func bundlePatch(object *admissionregistrationv1.MutatingWebhookConfiguration, bundle []byte) ([]byte, error) {
	patch := []operation{{"test", "/metadata/resourceVersion", object.ResourceVersion}}
	for i := range object.Webhooks {
		w := &object.Webhooks[i]
		if w.Name != WebhookName || bytes.Equal(w.ClientConfig.CABundle, bundle) {
			continue
		}
		path := fmt.Sprintf("/webhooks/%d/", i)
		patch = append(patch, operation{"test", path + "name", WebhookName}, operation{"add", path + "clientConfig/caBundle", bundle})
	}
	if len(patch) == 1 {
		return nil, nil
	}
	return json.Marshal(patch)
}
