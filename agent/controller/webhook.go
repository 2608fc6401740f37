package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/evictd/evictd/agent/affinity/extender"
	"github.com/evictd/evictd/agent/affinity/webhook"
	"github.com/evictd/evictd/agent/controller/serving"
)

// servesWebhook reports whether there is a server for the API server and schedulers.
func (o *Options) servesWebhook() bool { return o.WebhookAddress != "" && o.WebhookAddress != "0" }

// keepsCertificate reports whether its certificate is in a Secret that the controller makes.
func (o *Options) keepsCertificate() bool { return o.servesWebhook() && o.WebhookCertDir == "" }

// registerWebhook adds the HTTPS server to the manager, with its certificate, unless there is none. The manager starts
// it after the caches have synced, in every replica.
func registerWebhook(ctx context.Context, m manager.Manager, o *Options) error {
	if !o.servesWebhook() {
		return nil
	}
	filter, err := registerExtender(ctx, m, o)
	if err != nil {
		return err
	}
	certificate := &serving.Certificate{}
	numbers := serving.NewMetrics(certificate)
	pods := webhook.New()
	var schedulers *serving.ClientAuthorities
	if o.ExtenderClientCA != "" {
		schedulers = &serving.ClientAuthorities{File: o.ExtenderClientCA, Metrics: numbers, Log: o.Log}
		if err := m.Add(schedulers); err != nil {
			return fmt.Errorf("add the authorities of schedulers to the manager: %w", err)
		}
	}
	server := &serving.Server{
		Address: o.WebhookAddress, Handler: webhookHandler(serving.NewBodies(numbers), schedulers, filter, pods), Certificate: certificate,
		ClientCertificates: schedulers != nil, Metrics: numbers, Log: o.Log,
	}
	var source manager.Runnable = &serving.Files{Directory: o.WebhookCertDir, Certificate: certificate, Metrics: numbers, Log: o.Log}
	if o.keepsCertificate() {
		wake, err := webhookWake(ctx, m.GetCache(), o.Namespace)
		if err != nil {
			return err
		}
		source = &serving.Keeper{
			Namespace: o.Namespace, Certificate: certificate, Reader: m.GetAPIReader(), Writer: m.GetClient(),
			Wake: wake, Elected: m.Elected(), Metrics: numbers, Log: o.Log,
		}
	}
	if err := errors.Join(ctrlmetrics.Registry.Register(numbers), ctrlmetrics.Registry.Register(pods)); err != nil {
		return fmt.Errorf("register metrics of the webhook: %w", err)
	}
	if err := errors.Join(m.Add(source), m.Add(server), m.AddReadyzCheck("webhook", server.Check)); err != nil {
		return fmt.Errorf("add the webhook to the manager: %w", err)
	}
	return nil
}

// webhookHandler returns what the server answers. schedulers are the authorities of those that may ask the extender, nil
// if all may.
func webhookHandler(bodies *serving.Bodies, schedulers *serving.ClientAuthorities, filter, pods http.Handler) http.Handler {
	mux := http.NewServeMux()
	bounded := bodies.Bound(extender.MaxBody, filter)
	if schedulers != nil {
		bounded = schedulers.Require(bounded)
	}
	mux.Handle("/extender/filter", bounded)
	mux.Handle("/mutate/pods", bodies.Bound(webhook.MaxBody, pods))
	return mux
}

// webhookWake returns a channel that has a value after a change of the Secret with the certificate, or of the
// configuration of the webhook.
func webhookWake(ctx context.Context, informers ctrlcache.Cache, namespace string) (<-chan struct{}, error) {
	wake := make(chan struct{}, 1)
	changed := func(object any) {
		if !concernsWebhook(object, namespace) {
			return
		}
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, object any) { changed(object) }, DeleteFunc: changed}
	for _, object := range []client.Object{&corev1.Secret{}, &admissionregistrationv1.MutatingWebhookConfiguration{}} {
		informer, err := informers.GetInformer(ctx, object, ctrlcache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watch %T for the webhook: %w", object, err)
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return nil, fmt.Errorf("watch %T for the webhook: %w", object, err)
		}
	}
	return wake, nil
}

// concernsWebhook reports whether an object of an informer is the Secret with the certificate or the configuration of
// the webhook, of which the informer has the own one only.
func concernsWebhook(object any, namespace string) bool {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	switch o := object.(type) {
	case *corev1.Secret:
		return o.Name == serving.SecretName && o.Namespace == namespace
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		return true
	}
	return false
}

// webhookRights are those of deploy/kubernetes/controller-serving/rbac.yaml, which a certificate in a Secret needs.
func webhookRights(namespace string) []right {
	const group = admissionregistrationv1.GroupName
	return []right{
		{namespace: namespace, resource: "secrets", verbs: []string{"create"}},
		{namespace: namespace, resource: "secrets", name: serving.SecretName, verbs: []string{"update"}},
		{group: group, resource: "mutatingwebhookconfigurations", name: serving.ConfigurationName, verbs: []string{"get", "list", "watch", "patch"}},
	}
}
