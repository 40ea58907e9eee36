"""Django's classes that take an argument for the type checker only."""

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    ModelForm = forms.ModelForm[Any]
else:
    ModelAdmin, ModelForm = admin.ModelAdmin, forms.ModelForm
