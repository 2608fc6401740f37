package controller

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/evictd/evictd/agent/affinity/extender"
	"github.com/evictd/evictd/agent/affinity/webhook"
	"github.com/evictd/evictd/agent/controller/affinity"
	"github.com/evictd/evictd/agent/controller/serving"
)

// TestWebhookOptions: without an address nothing of the webhook runs; with a certificate in files nothing of it is
// watched.
func TestWebhookOptions(t *testing.T) {
	for _, tt := range []struct {
		address, dir  string
		serves, keeps bool
	}{
		{"", "", false, false},
		{"0", "", false, false},
		{"0", "/certs", false, false},
		{":9443", "", true, true},
		{":9443", "/certs", true, false},
	} {
		o := &Options{Namespace: "evictd", Affinity: affinity.Off, WebhookAddress: tt.address, WebhookCertDir: tt.dir}
		if o.servesWebhook() != tt.serves || o.keepsCertificate() != tt.keeps {
			t.Errorf("%+v: serves %t, keeps %t", tt, o.servesWebhook(), o.keepsCertificate())
		}
		if !tt.serves {
			// The manager is nil: whatever is added to it panics.
			if err := registerWebhook(t.Context(), nil, o); err != nil {
				t.Error(err)
			}
		}
		watched := false
		for object, by := range cacheOptions(o).ByObject {
			if _, ok := object.(*admissionregistrationv1.MutatingWebhookConfiguration); ok {
				watched = true
				if !by.Field.Matches(fields.Set{"metadata.name": serving.ConfigurationName}) || by.Field.Matches(fields.Set{"metadata.name": "other"}) {
					t.Errorf("%+v: webhook configurations %s are watched; want the own one", tt, by.Field)
				}
			}
		}
		if watched != tt.keeps {
			t.Errorf("%+v: webhook configurations are watched: %t", tt, watched)
		}
	}
}

// TestWebhookHandler: the server has no other paths, and bounds the bodies of these.
func TestWebhookHandler(t *testing.T) {
	numbers := serving.NewMetrics(&serving.Certificate{})
	filter := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
	})
	h := webhookHandler(serving.NewBodies(numbers), nil, filter, webhook.New())
	for _, tt := range []struct {
		method, path, body string
		want               int
	}{
		{"POST", "/mutate/pods", "{}", http.StatusBadRequest},
		{"GET", "/mutate/pods", "", http.StatusMethodNotAllowed},
		{"POST", "/mutate/pods", strings.Repeat(" ", webhook.MaxBody+1), http.StatusRequestEntityTooLarge},
		{"POST", "/extender/filter", "{}", http.StatusOK},
		{"POST", "/extender/filter", strings.Repeat(" ", extender.MaxBody+1), http.StatusRequestEntityTooLarge},
		{"POST", "/", "{}", http.StatusNotFound},
		{"GET", "/metrics", "", http.StatusNotFound},
	} {
		r := httptest.NewRequest(tt.method, tt.path, strings.NewReader(tt.body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.want {
			t.Errorf("%s %s with %d bytes = %d; want %d", tt.method, tt.path, len(tt.body), w.Code, tt.want)
		}
	}
}

// TestWebhookChanged: only a change of the own Secret or of the own configuration wakes the keeper of the certificate.
func TestWebhookChanged(t *testing.T) {
	secret := func(namespace, name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	for _, tt := range []struct {
		name   string
		object any
		want   bool
	}{
		{"the Secret", secret("evictd", serving.SecretName), true},
		{"another Secret", secret("evictd", "fence-method-a"), false},
		{"another namespace", secret("default", serving.SecretName), false},
		{"the configuration", &admissionregistrationv1.MutatingWebhookConfiguration{}, true},
		{"nothing", nil, false},
	} {
		if got := concernsWebhook(tt.object, "evictd"); got != tt.want {
			t.Errorf("%s: %t; want %t", tt.name, got, tt.want)
		}
	}
}
